#version 310 es
// Every channel by itself, of texels: PX pixels of a row of four channels an invocation, channels
// last. What the windows of a row's pixels meet of a row is fetched once and serves all their taps.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef PX
#define PX 4
#endif
#ifndef X_TEXTURE
#define X_TEXTURE 1
#endif
#ifndef WEIGHT_TEXTURE
#define WEIGHT_TEXTURE 1
#endif
#include "common/launch.glsl"
#include "conv2d/nhwc.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;

// Pixels of a row that the windows of an invocation span, those between the taps left out.
#define APART (DILATION_W > 1 ? PX * KERNEL_W : (PX - 1) * STRIDE_W + KERNEL_W)
// Which of them tap `kx` of pixel `p` meets.
#define PLACE(p, kx) (DILATION_W > 1 ? (p) * KERNEL_W + (kx) : (p) * STRIDE_W + (kx))

void convolve(int quad, int y, int left) {
    int quads = (c + 3) / 4;
    int image = y / oh;  // rows are counted through all images
    int top = (y - image * oh) * STRIDE_H - PADDING_TOP;
    int column[APART];
    for (int p = 0; p < PX; ++p)
        for (int kx = 0; kx < KERNEL_W; ++kx)
            column[PLACE(p, kx)] = (left + p) * STRIDE_W - PADDING_LEFT + kx * DILATION_W;
    vec4 sum[PX];
    for (int p = 0; p < PX; ++p) sum[p] = vec4(0.0);
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        int row = top + ky * DILATION_H;
        bool there = row >= 0 && row < h;
        int start = (image * h + (there ? row : 0)) * w;
        vec4 line[APART];
        for (int i = 0; i < APART; ++i) {
            bool inside = there && column[i] >= 0 && column[i] < w;
            vec4 met = x_at((start + (inside ? column[i] : 0)) * (x_pixel >> 2) + (x_first >> 2) + quad);
            met = prologue(met, quad, image);
            line[i] = inside ? met : vec4(0.0);
        }
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            vec4 weights = WEIGHT((ky * KERNEL_W + kx) * quads + quad);
            for (int p = 0; p < PX; ++p) sum[p] += line[PLACE(p, kx)] * weights;
        }
    }
    for (int p = 0; p < PX; ++p)
        if (left + p < ow) finish(sum[p], y * ow + left + p, quad);
}

void main() {
    int quad = int(INVOCATION_ID.x);
    int left = int(INVOCATION_ID.y) * PX;
    if (quad >= (c + 3) / 4 || left >= ow) return;
    for (int y = int(WORKGROUP_ID.z); y < n * oh; y += int(WORKGROUP_COUNT.z))
        convolve(quad, y, left);
}
