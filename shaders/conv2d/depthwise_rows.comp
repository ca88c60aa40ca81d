#version 310 es
// Depthwise convolution, channels last: PX pixels of a row of four channels an invocation. The loop over the
// taps of a row is unrolled, so that what the windows share is loaded once. The number of rows inside of the
// image is not a constant, so that compilers do not unroll that loop, too: boards have too few registers.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef PX
#define PX 4
#endif
#include "common/launch.glsl"
#include "conv2d/nhwc.glsl"
#include "conv2d/taps.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;

void convolve(int quad, int y, int left) {
    int quads = (c + 3) / 4;
    int pixel = x_pixel >> 2;
    int image = y / oh;  // rows are counted through all images
    int top = (y - image * oh) * STRIDE_H - PADDING_TOP;
    int from = left * STRIDE_W - PADDING_LEFT;
    ivec2 rows = taps(top, top, h, DILATION_H, KERNEL_H);
    int start = (image * h + top + rows.x * DILATION_H) * w * pixel + (x_first >> 2) + quad;
    int tap = rows.x * KERNEL_W * quads + quad;
    vec4 sum[PX];
    for (int p = 0; p < PX; ++p) sum[p] = vec4(0.0);
    for (int ky = rows.x; ky < rows.y; ++ky) {
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            vec4 weights = WEIGHT(tap + kx * quads);
            for (int p = 0; p < PX; ++p) {
                int column = from + p * STRIDE_W + kx * DILATION_W;
                bool inside = uint(column) < uint(w);
                vec4 value = x_at(start + (inside ? column : 0) * pixel);
                sum[p] += (inside ? prologue(value, quad, image) : vec4(0.0)) * weights;
            }
        }
        start += DILATION_H * w * pixel;
        tap += KERNEL_W * quads;
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
