#version 310 es
// A convolution's gradient by what it convolves, planar images, any number of groups: PX places of a
// row of one channel an invocation. The weight is taken as it lies.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef PX
#define PX 4
#endif
#include "common/launch.glsl"
#include "common/window.glsl"
#ifndef GROUPS
#define GROUPS 1
#endif
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer Dy { float dy[]; };
layout(std430, binding = 1) buffer Weight { float weight[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
#include <epilogue>
uniform int n, c, h, w, o, oh, ow, share, o_group;
uniform int dy_row, out_row;
#include "conv2d_input_gradient/columns.glsl"
// Numbers of a row of dy that PX places meet, without strides.
#define SPAN (PX - 1 + (KERNEL_W - 1) * DILATION_W + 1)
float sum[PX];

float dy_value(int start, int column) {
    // Unconditional: a load that depends on a condition is waited for before the next is issued.
    float value = dy[start + clamp(column, 0, ow - 1)];
    return column >= 0 && column < ow ? value : 0.0;
}

// What a row of a kernel, from `tap` on, gives to the places from `left` on of a row of dy.
void add_row(int start, int tap, int left) {
#if STRIDE_W == 1 && SPAN <= 16
    // The row's segment is read once and serves every tap.
    float line[SPAN];
    int first = left + PADDING_LEFT - (KERNEL_W - 1) * DILATION_W;
    for (int i = 0; i < SPAN; ++i) line[i] = dy_value(start, first + i);
    for (int kx = 0; kx < KERNEL_W; ++kx) {
        float factor = weight[tap + kx];
        for (int p = 0; p < PX; ++p) sum[p] += line[p + (KERNEL_W - 1 - kx) * DILATION_W] * factor;
    }
#else
    for (int kx = 0; kx < KERNEL_W; ++kx) {
        int column = dy_column_of(left, kx);
        if (column == NO_COLUMN) continue;
        float factor = weight[tap + kx];
        for (int p = 0; p < PX; ++p) sum[p] += dy_value(start, column + p) * factor;
    }
#endif
}

void main() {
    int across = PLACE_BLOCKS * STRIDE_W;
    int lines = h * across;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * c * lines; i += stride) {
        int plane = i / lines;
        int line = i - plane * lines;
        int row = line / across;
        int left = first_column(line - row * across);
        int image = plane / c;
        int channel = plane - image * c;
        int group = channel / share;
        for (int p = 0; p < PX; ++p) sum[p] = 0.0;
        for (int j = 0; j < o_group; ++j) {
            int from = group * o_group + j;
            int tap = (from * share + channel - group * share) * (KERNEL_H * KERNEL_W);
            int start = image * dy_row + from * oh * ow;
            for (int ky = 0; ky < KERNEL_H; ++ky) {
                int y = dy_row_of(row, ky);
                if (y >= 0) add_row(start + y * ow, tap + ky * KERNEL_W, left);
            }
        }
        int place = image * out_row + (channel * h + row) * w + left;
        for (int p = 0; p < PX; ++p) {
            if (left + p * STRIDE_W >= w) break;
            int at = place + p * STRIDE_W;
            result[at] = epilogue(sum[p], at, channel);
        }
    }
}
