// A line: the columns of a row of x that the windows of neighbouring pixels read, each loaded once; for
// channels-last images (conv2d/nhwc.glsl).
#define MAX_LINE 32  // columns for which there are registers
// Whether windows share columns; otherwise each tap of each pixel has its own.
#define SHARED (DILATION_W == 1 && STRIDE_W <= KERNEL_W)
// Length of a line for so many pixels, without the columns between the taps.
#define LINE_COLUMNS(pixels) (SHARED ? ((pixels) - 1) * STRIDE_W + KERNEL_W : (pixels) * KERNEL_W)
// Index in the line of the column that tap `kx` of pixel `p` reads, and whether no earlier pixel reads it.
#define LINE_INDEX(p, kx) (SHARED ? (p) * STRIDE_W + (kx) : (p) * KERNEL_W + (kx))
#define IS_FIRST_USE(p, kx) (!SHARED || (p) == 0 || (kx) + STRIDE_W >= KERNEL_W)

// Four channels of a pixel, after the prologue; 0 outside of the image. start: the first pixel of the row, -1
// for a row outside of the image.
vec4 x_or_zero(int start, int column, int quad, int image) {
    // Unconditional: a load that depends on a condition is waited for before the next is issued.
    bool inside = start >= 0 && column >= 0 && column < w;
    vec4 value = x_at((inside ? start + column : 0) * (x_pixel >> 2) + (x_first >> 2) + quad);
    return inside ? prologue(value, quad, image) : vec4(0.0);
}
