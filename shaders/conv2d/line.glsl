// What the windows of pixels that follow one another in a row meet of a row of x, each of it once.
// Whether they share columns: else each tap of each pixel has its own.
#define SHARED (DILATION_W == 1 && STRIDE_W <= KERNEL_W)
// Columns that the windows of so many pixels meet, those between the taps left out.
#define APART(pixels) (SHARED ? ((pixels) - 1) * STRIDE_W + KERNEL_W : (pixels) * KERNEL_W)
// Which of them tap `kx` of pixel `p` meets, and whether that of no pixel before does.
#define PLACE(p, kx) (SHARED ? (p) * STRIDE_W + (kx) : (p) * KERNEL_W + (kx))
#define FIRST(p, kx) (!SHARED || (p) == 0 || (kx) + STRIDE_W >= KERNEL_W)
