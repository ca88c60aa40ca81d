#version 310 es
// A depthwise convolution's gradient by what it convolves, channels last: PX places of a row by four
// channels an invocation. The weight is taken as it lies.
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
#include "common/window.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer Dy { vec4 dy[]; };
layout(std430, binding = 1) buffer Weight { float weight[]; };
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#include <epilogue>
uniform int n, c, h, w, oh, ow;
#include "conv2d_input_gradient/columns.glsl"

// Four channels' weights of a tap.
vec4 weights(int quad, int tap) {
    ivec4 channels = min(ivec4(0, 1, 2, 3) + 4 * quad, c - 1) * (KERNEL_H * KERNEL_W) + tap;
    return vec4(weight[channels.x], weight[channels.y], weight[channels.z], weight[channels.w]);
}

void gather(int image, int row, int left, int quad, int quads) {
    vec4 sum[PX];
    for (int p = 0; p < PX; ++p) sum[p] = vec4(0.0);
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        int y = dy_row_of(row, ky);
        if (y < 0) continue;
        int start = (image * oh + y) * ow * quads + quad;
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            int column = dy_column_of(left, kx);
            if (column == NO_COLUMN) continue;
            vec4 factor = weights(quad, ky * KERNEL_W + kx);
            for (int p = 0; p < PX; ++p) {
                int x = column + p, inside = clamp(x, 0, ow - 1);
                vec4 dy_value = dy[start + inside * quads];
                sum[p] += x == inside ? dy_value * factor : vec4(0.0);
            }
        }
    }
    int place = ((image * h + row) * w + left) * quads + quad;
    for (int p = 0; p < PX; ++p) {
        if (left + p * STRIDE_W >= w) break;
        int at = place + p * STRIDE_W * quads;
        result[at] = epilogue(sum[p], at, quad);
    }
}

void main() {
    int quads = (c + 3) / 4;
    int quad = int(INVOCATION_ID.x);
    if (quad >= quads) return;
    int across = PLACE_BLOCKS * STRIDE_W;
    int stride = int(WORKGROUP_COUNT.y) * WG_Y;
    for (int i = int(INVOCATION_ID.y); i < n * h * across; i += stride) {
        int row = i / across;
        int image = row / h;
        gather(image, row - image * h, first_column(i - row * across), quad, quads);
    }
}
