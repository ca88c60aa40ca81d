#version 310 es
// Depthwise convolution, channels last: PX pixels of a row of four channels an invocation. The loops run only
// over taps inside of the image. Their counts are not constants, so that compilers do not unroll them: boards
// have too few registers.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef PX
#define PX 3
#endif
#include "common/launch.glsl"
#include "conv2d/nhwc.glsl"
#include "conv2d/taps.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;

void convolve(int quad, int y, int left) {
    int quads = (c + 3) / 4;
    int image = y / oh;  // rows are counted through all images
    int top = (y - image * oh) * STRIDE_H - PADDING_TOP;
    int from = left * STRIDE_W - PADDING_LEFT;
    ivec2 rows = taps(top, top, h, DILATION_H, KERNEL_H);
    ivec2 columns = taps(from, from + (PX - 1) * STRIDE_W, w, DILATION_W, KERNEL_W);
    vec4 sum[PX];
    for (int p = 0; p < PX; ++p) sum[p] = vec4(0.0);
    for (int ky = rows.x; ky < rows.y; ++ky) {
        int start = (image * h + top + ky * DILATION_H) * w;
        int column = from + columns.x * DILATION_W;
        int tap = (ky * KERNEL_W + columns.x) * quads + quad;
        for (int kx = columns.x; kx < columns.y; ++kx, tap += quads, column += DILATION_W) {
            vec4 weights = WEIGHT(tap);
            for (int p = 0; p < PX; ++p) {
                int x_column = column + p * STRIDE_W;
                bool inside = uint(x_column) < uint(w);
                vec4 value = x_at((start + (inside ? x_column : 0)) * (x_pixel >> 2) + (x_first >> 2) + quad);
                sum[p] += inside ? prologue(value, quad, image) * weights : vec4(0.0);
            }
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
