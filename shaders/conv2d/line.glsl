// What the windows of pixels that follow one another in a row meet of a row of x, each of it once: of
// images as conv2d/nhwc.glsl has them.
#define MOST 32  // columns that registers have room for
// Whether they share columns: else each tap of each pixel has its own.
#define SHARED (DILATION_W == 1 && STRIDE_W <= KERNEL_W)
// Columns that the windows of so many pixels meet, those between the taps left out.
#define APART(pixels) (SHARED ? ((pixels) - 1) * STRIDE_W + KERNEL_W : (pixels) * KERNEL_W)
// Which of them tap `kx` of pixel `p` meets, and whether that of no pixel before does.
#define PLACE(p, kx) (SHARED ? (p) * STRIDE_W + (kx) : (p) * KERNEL_W + (kx))
#define FIRST(p, kx) (!SHARED || (p) == 0 || (kx) + STRIDE_W >= KERNEL_W)

// What a pixel of the row that begins at pixel `start` has in the `quad`th four of channels, after the
// prologue; 0 outside of the image, where `start` is -1.
vec4 met_at(int start, int column, int quad, int image) {
    // Read in any case: loads that hang on a condition are waited for one by one.
    bool inside = start >= 0 && column >= 0 && column < w;
    vec4 found = x_at((inside ? start + column : 0) * (x_pixel >> 2) + (x_first >> 2) + quad);
    return inside ? prologue(found, quad, image) : vec4(0.0);
}
