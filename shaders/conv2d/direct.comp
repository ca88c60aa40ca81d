#version 310 es
// Direct convolution of planar images: PX pixels of a row by four output channels an invocation.
// The input's row segment is read once into registers and serves every tap of the kernel's row
// (Rovder 2019, section 5.1, convolves one pixel a work-item in NHWC).
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
#ifndef PLAIN
#define PLAIN 0
#endif
#if PLAIN  // the weight is taken as it lies
layout(std430, binding = 1) buffer Weight { float weight[]; };
#else
#include "conv2d/weight.glsl"
#endif
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
#include <epilogue>
uniform int n, c, h, w, o, oh, ow;
uniform int x_row, out_row;

// Pixels of a row that one invocation's windows span.
#define SPAN ((PX - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)

float pixel(int start, int column) {
    // Read in any case: loads that hang on a condition are waited for one by one.
    float value = x[start + clamp(column, 0, w - 1)];
    return column >= 0 && column < w ? value : 0.0;
}

// Of four output channels what one number of each kernel is, the `place`th.
vec4 weights_at(int quad, int place) {
    int numbers = c * KERNEL_H * KERNEL_W;
#if PLAIN
    int first = quad * 4 * numbers + place, last = (o - 1 - quad * 4) * numbers;
    return vec4(weight[first], weight[first + min(numbers, last)],
                weight[first + min(2 * numbers, last)], weight[first + min(3 * numbers, last)]);
#else
    return WEIGHT(quad * numbers + place);
#endif
}

void convolve(int image, int quad, int left, int y) {
    vec4 sum[PX];
    for (int p = 0; p < PX; ++p) sum[p] = vec4(0.0);
    int first = left * STRIDE_W - PADDING_LEFT;
    for (int channel = 0; channel < c; ++channel) {
        for (int ky = 0; ky < KERNEL_H; ++ky) {
            int row = y * STRIDE_H - PADDING_TOP + ky * DILATION_H;
            if (row < 0 || row >= h) continue;
            int start = image * x_row + (channel * h + row) * w;
            int tap = (channel * KERNEL_H + ky) * KERNEL_W;
#if SPAN <= 16
            // The row's segment is read once and serves every tap.
            float line[SPAN];
            for (int i = 0; i < SPAN; ++i) line[i] = pixel(start, first + i);
#endif
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                vec4 weights = weights_at(quad, tap + kx);
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
    int plane = oh * ow;
    int place = image * out_row + quad * 4 * plane + y * ow + left;
    for (int p = 0; p < PX; ++p) {
        if (left + p >= ow) break;
        vec4 value = epilogue(sum[p], 0, quad);  // its operands lie by channels
        result[place + p] = value.x;
        if (quad * 4 + 1 < o) result[place + plane + p] = value.y;
        if (quad * 4 + 2 < o) result[place + 2 * plane + p] = value.z;
        if (quad * 4 + 3 < o) result[place + 3 * plane + p] = value.w;
    }
}

void main() {
    int left = int(INVOCATION_ID.x) * PX;
    int y = int(INVOCATION_ID.y);
    if (left >= ow || y >= oh) return;
    int quads = (o + 3) / 4;
    int stride = int(WORKGROUP_COUNT.z) * WG_Z;
    for (int z = int(INVOCATION_ID.z); z < quads * n; z += stride)
        convolve(z / quads, z % quads, left, y);
}
