#version 310 es
// Every channel by itself: PX pixels of a row of four channels an invocation, channels last.
#ifndef WG_X
#define WG_X 16
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef PX
#define PX 2
#endif
#include "common/launch.glsl"
#include "conv2d/nhwc.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;

void convolve(int quad, int y, int left) {
    int quads = (c + 3) / 4;
    vec4 sum[PX];
    for (int p = 0; p < PX; ++p) sum[p] = vec4(0.0);
    int first = y * ow + left;  // rows are counted through all images
    int image = y / oh;
    ivec3 from = ivec3(left * STRIDE_W - PADDING_LEFT, (y - image * oh) * STRIDE_H - PADDING_TOP, image);
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            vec4 weights = WEIGHT((ky * KERNEL_W + kx) * quads + quad);
            for (int p = 0; p < PX; ++p) {
                int at = meets(from + ivec3(p * STRIDE_W, 0, 0), ky, kx);
                vec4 met = prologue(X_AT(max(at, 0) + quad), quad, from.z);
                sum[p] += at < 0 ? vec4(0.0) : met * weights;
            }
        }
    }
    for (int p = 0; p < PX; ++p)
        if (left + p < ow) finish(sum[p], first + p, quad);
}

void main() {
    int quad = int(INVOCATION_ID.x);
    int left = int(INVOCATION_ID.y) * PX;
    if (quad >= (c + 3) / 4 || left >= ow) return;
    for (int y = int(WORKGROUP_ID.z); y < n * oh; y += int(WORKGROUP_COUNT.z))
        convolve(quad, y, left);
}
