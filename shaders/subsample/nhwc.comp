#version 310 es
// Subsampling, channels last: one pixel of four channels an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef KERNEL_H
#define KERNEL_H 2
#define KERNEL_W 2
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer Bias { vec4 bias[]; };
layout(std430, binding = 3) buffer Out { vec4 result[]; };
#include <epilogue>
uniform int n, c, h, w, oh, ow;

vec4 mean(int first, int quad) {
    int quads = (c + 3) / 4;
    vec4 sum = vec4(0.0);
    for (int ky = 0; ky < KERNEL_H; ++ky)
        for (int kx = 0; kx < KERNEL_W; ++kx) sum += x[(first + ky * w + kx) * quads + quad];
    return sum / float(KERNEL_H * KERNEL_W);
}

void main() {
    int quads = (c + 3) / 4;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * oh * ow * quads; i += stride) {
        int pixel = i / quads;
        int quad = i - pixel * quads;
        int row = pixel / ow;  // of all the images' rows
        int image = row / oh;
        int top = (image * h + (row - image * oh) * KERNEL_H) * w;
        int left = (pixel - row * ow) * KERNEL_W;
        result[i] = epilogue(weight[quad] * mean(top + left, quad) + bias[quad], i, quad);
    }
}
