// Convolution of one image on the CPU as Cronin 2018 compares with: a patch matrix, then a product
// by three plain loops. x: c x h x w. patches: oh * ow rows of kh * kw * c, channels innermost.
#include <stddef.h>

void im2row(const float *x, float *patches, int c, int h, int w, int k, int padding) {
    for (int y = 0; y < h; ++y)
        for (int column = 0; column < w; ++column)
            for (int ky = 0; ky < k; ++ky)
                for (int kx = 0; kx < k; ++kx) {
                    int iy = y + ky - padding, ix = column + kx - padding;
                    int inside = iy >= 0 && iy < h && ix >= 0 && ix < w;
                    for (int i = 0; i < c; ++i)
                        *patches++ = inside ? x[((size_t)i * h + iy) * w + ix] : 0.0f;
                }
}

// result: m x n. a: m x k. b: k x n.
void gemm_ab(const float *a, const float *b, float *result, int m, int n, int k) {
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0.0f;
            for (int l = 0; l < k; ++l) sum += a[(size_t)i * k + l] * b[(size_t)l * n + j];
            result[(size_t)i * n + j] = sum;
        }
}

// The same with b stored transposed, n x k.
void gemm_abt(const float *a, const float *b, float *result, int m, int n, int k) {
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0.0f;
            for (int l = 0; l < k; ++l) sum += a[(size_t)i * k + l] * b[(size_t)j * k + l];
            result[(size_t)i * n + j] = sum;
        }
}
