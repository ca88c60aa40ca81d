#version 310 es
// Subsampling, planar images: one result an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef KERNEL_H
#define KERNEL_H 2
#define KERNEL_W 2
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { float weight[]; };
layout(std430, binding = 2) buffer Bias { float bias[]; };
layout(std430, binding = 3) buffer Out { float result[]; };
#include <epilogue>
uniform int n, c, h, w, oh, ow;
uniform int x_row, out_row;

float mean(int first) {
    float sum = 0.0;
    for (int ky = 0; ky < KERNEL_H; ++ky)
        for (int kx = 0; kx < KERNEL_W; ++kx) sum += x[first + ky * w + kx];
    return sum / float(KERNEL_H * KERNEL_W);
}

void main() {
    int inner = c * oh * ow;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * inner; i += stride) {
        int image = i / inner;
        int element = i - image * inner;
        int row = element / ow;  // of all the channels' rows
        int channel = row / oh;
        int y = row - channel * oh;
        int top = (channel * h + y * KERNEL_H) * w;
        int left = (element - row * ow) * KERNEL_W;
        float value = weight[channel] * mean(image * x_row + top + left) + bias[channel];
        int place = image * out_row + element;
        result[place] = epilogue(value, place, channel);
    }
}
