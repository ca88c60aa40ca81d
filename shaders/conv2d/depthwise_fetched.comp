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

// Whether windows share columns of a row: else each tap of each pixel has its own.
#define SHARED (DILATION_W == 1 && STRIDE_W <= KERNEL_W)
// Columns of a row that the windows of an invocation meet, those between the taps left out.
#define APART (SHARED ? (PX - 1) * STRIDE_W + KERNEL_W : PX * KERNEL_W)
// Which of them tap `kx` of pixel `p` meets.
#define PLACE(p, kx) (SHARED ? (p) * STRIDE_W + (kx) : (p) * KERNEL_W + (kx))
#define MOST 32  // that registers have room for

// What lies in a row that begins at pixel `start`, which is -1 outside of the image.
vec4 met(int start, int column, int quad, int image) {
    bool inside = start >= 0 && column >= 0 && column < w;
    vec4 found = x_at((inside ? start + column : 0) * (x_pixel >> 2) + (x_first >> 2) + quad);
    return inside ? prologue(found, quad, image) : vec4(0.0);
}

void convolve(int quad, int y, int left) {
    int quads = (c + 3) / 4;
    int image = y / oh;  // rows are counted through all images
    int top = (y - image * oh) * STRIDE_H - PADDING_TOP;
    vec4 sum[PX];
    for (int p = 0; p < PX; ++p) sum[p] = vec4(0.0);
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        int row = top + ky * DILATION_H;
        int start = row >= 0 && row < h ? (image * h + row) * w : -1;
#define COLUMN(p, kx) ((left + (p)) * STRIDE_W - PADDING_LEFT + (kx) * DILATION_W)
#if KERNEL_W <= MOST / PX
        vec4 line[APART];
        for (int p = 0; p < PX; ++p)
            for (int kx = 0; kx < KERNEL_W; ++kx)
                if (!SHARED || p == 0 || kx + STRIDE_W >= KERNEL_W)
                    line[PLACE(p, kx)] = met(start, COLUMN(p, kx), quad, image);
#define MET(p, kx) line[PLACE(p, kx)]
#else
#define MET(p, kx) met(start, COLUMN(p, kx), quad, image)
#endif
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            vec4 weights = WEIGHT((ky * KERNEL_W + kx) * quads + quad);
            for (int p = 0; p < PX; ++p) sum[p] += MET(p, kx) * weights;
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
