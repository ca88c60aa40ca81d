// A line: the columns of a row of x that the windows of neighbouring pixels read, each of them once, of
// images as conv2d/nhwc.glsl has them.
#define MAX_LINE 32  // columns for which there are registers
// Whether windows share columns: else each tap of each pixel has its own.
#define SHARED (DILATION_W == 1 && STRIDE_W <= KERNEL_W)
// Columns of a line of so many pixels; those between the taps are left out.
#define LINE_COLUMNS(pixels) (SHARED ? ((pixels) - 1) * STRIDE_W + KERNEL_W : (pixels) * KERNEL_W)
// Which of them tap `kx` of pixel `p` reads, and whether no pixel before reads it.
#define LINE_INDEX(p, kx) (SHARED ? (p) * STRIDE_W + (kx) : (p) * KERNEL_W + (kx))
#define IS_FIRST_USE(p, kx) (!SHARED || (p) == 0 || (kx) + STRIDE_W >= KERNEL_W)

// The `quad`th four channels of a pixel of the row that begins at pixel `start`, after the prologue; 0
// outside of the image, or where `start` is -1.
vec4 met_at(int start, int column, int quad, int image) {
    // Read in any case: loads that hang on a condition are waited for one by one.
    bool inside = start >= 0 && column >= 0 && column < w;
    vec4 found = x_at((inside ? start + column : 0) * (x_pixel >> 2) + (x_first >> 2) + quad);
    return inside ? prologue(found, quad, image) : vec4(0.0);
}
