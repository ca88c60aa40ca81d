#version 310 es
// Groups of few channels, channels last: PX pixels of a row by four output channels of a group an
// invocation. All that the windows of these pixels read of a row of x is loaded at once. With UNROLL the
// number of quads of channels of a group is a constant and the loop over them is unrolled; without, it is
// not, which takes fewer registers.
#ifndef WG_X
#define WG_X 16
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef PX
#define PX 2
#endif
#ifndef UNROLL
#define UNROLL 0
#endif
#ifndef SHARE
#define SHARE 4
#endif
#include "common/launch.glsl"
#include "conv2d/groups.glsl"
#include "conv2d/nhwc.glsl"
#include "conv2d/line.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
#if UNROLL
#define DEPTH (SHARE / 4)  // quads of channels of a group
#else
#define DEPTH (c / GROUPS / 4)
#endif

void convolve(int quad, int y, int left) {
    int quads = o / 4;
    int first = quad / (quads / GROUPS) * DEPTH;  // of the group's channels
    int image = y / oh;  // rows are counted through all images
    int top = (y - image * oh) * STRIDE_H - PADDING_TOP;
    vec4 sum[PX];
    for (int p = 0; p < PX; ++p) sum[p] = vec4(0.0);
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        int row = top + ky * DILATION_H;
        int start = row >= 0 && row < h ? (image * h + row) * w : -1;
        for (int step = 0; step < DEPTH; ++step) {
#define COLUMN(p, kx) ((left + (p)) * STRIDE_W - PADDING_LEFT + (kx) * DILATION_W)
#if KERNEL_W <= MAX_LINE / PX
            vec4 line[LINE_COLUMNS(PX)];
            for (int p = 0; p < PX; ++p)
                for (int kx = 0; kx < KERNEL_W; ++kx)
                    if (IS_FIRST_USE(p, kx))
                        line[LINE_INDEX(p, kx)] = x_or_zero(start, COLUMN(p, kx), first + step, image);
#define X_IN_WINDOW(p, kx) line[LINE_INDEX(p, kx)]
#else
#define X_IN_WINDOW(p, kx) x_or_zero(start, COLUMN(p, kx), first + step, image)
#endif
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                int at = ((ky * KERNEL_W + kx) * SHARE + 4 * step) * quads + quad;
                for (int l = 0; l < 4; ++l) {
                    vec4 weights = WEIGHT(at + l * quads);
                    for (int p = 0; p < PX; ++p) sum[p] += X_IN_WINDOW(p, kx)[l] * weights;
                }
            }
        }
    }
    for (int p = 0; p < PX; ++p)
        if (left + p < ow) finish(sum[p], y * ow + left + p, quad);
}

void main() {
    int quad = int(INVOCATION_ID.x);
    int left = int(INVOCATION_ID.y) * PX;
    if (quad >= o / 4 || left >= ow) return;
    for (int y = int(WORKGROUP_ID.z); y < n * oh; y += int(WORKGROUP_COUNT.z))
        convolve(quad, y, left);
}
