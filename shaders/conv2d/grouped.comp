#version 310 es
// Direct convolution with any number of groups: PX pixels of a row of one channel an invocation.
#ifndef WG_X
#define WG_X 4
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef WG_Z
#define WG_Z 2
#endif
#ifndef PX
#define PX 2
#endif
#include "common/launch.glsl"
#include "common/window.glsl"
#include "conv2d/groups.glsl"
#ifndef WEIGHT_HALF
#define WEIGHT_HALF 0
#endif
#ifndef WEIGHT_BYTES
#define WEIGHT_BYTES 0
#endif
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(std430, binding = 0) buffer X { float x[]; };
#if WEIGHT_HALF
#include "common/half.glsl"
layout(std430, binding = 1) buffer Weight { uint weight[]; };
#define WEIGHT(i) one_half(weight[(i) / 2], i)
#elif WEIGHT_BYTES
#include "common/bytes.glsl"
layout(std430, binding = 1) buffer Weight { int weight[]; };
#define WEIGHT(i) float(one_signed(weight[(i) / 4], i))
#else
layout(std430, binding = 1) buffer Weight { float weight[]; };
#define WEIGHT(i) weight[i]
#endif
layout(std430, binding = 2) buffer Out { float result[]; };
#include <epilogue>
uniform int n, c, h, w, o, oh, ow;
uniform int x_row, out_row;

// Pixels of a row that one invocation's windows span.
#define SPAN ((PX - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)

float pixel(int start, int column) {
    // Unconditional: a load that depends on a condition is waited for before the next is issued.
    float value = x[start + clamp(column, 0, w - 1)];
    return column >= 0 && column < w ? value : 0.0;
}

void convolve(int image, int output_channel, int left, int y) {
    float sum[PX];
    for (int p = 0; p < PX; ++p) sum[p] = 0.0;
    int channels = c / GROUPS;
    int group = output_channel / (o / GROUPS);
    int first = left * STRIDE_W - PADDING_LEFT;
    for (int channel = 0; channel < channels; ++channel) {
        for (int ky = 0; ky < KERNEL_H; ++ky) {
            int row = y * STRIDE_H - PADDING_TOP + ky * DILATION_H;
            if (row < 0 || row >= h) continue;
            int start = image * x_row + ((group * channels + channel) * h + row) * w;
            int tap = ((output_channel * channels + channel) * KERNEL_H + ky) * KERNEL_W;
#if SPAN <= 16
            // The row's segment is read once and serves every tap.
            float line[SPAN];
            for (int i = 0; i < SPAN; ++i) line[i] = pixel(start, first + i);
#endif
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                float weights = WEIGHT(tap + kx);
                for (int p = 0; p < PX; ++p) {
#if SPAN <= 16
                    sum[p] += line[p * STRIDE_W + kx * DILATION_W] * weights;
#else
                    sum[p] += pixel(start, first + p * STRIDE_W + kx * DILATION_W) * weights;
#endif
                }
            }
        }
    }
    int place = image * out_row + (output_channel * oh + y) * ow + left;
    for (int p = 0; p < PX; ++p) {
        if (left + p >= ow) break;
        result[place + p] = epilogue(sum[p], place + p, output_channel);
    }
}

void main() {
    int left = int(INVOCATION_ID.x) * PX;
    int y = int(INVOCATION_ID.y);
    if (left >= ow || y >= oh) return;
    int stride = int(WORKGROUP_COUNT.z) * WG_Z;
    for (int z = int(INVOCATION_ID.z); z < o * n; z += stride)
        convolve(z / o, z % o, left, y);
}
