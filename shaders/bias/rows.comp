#version 310 es
// Adds bias[channel] to every element of a channel: one element an invocation
// (Rovder 2017, section 9.1, row major).
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Bias { float bias[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
uniform int n, c, inner;
uniform int x_row, out_row;

void main() {
    int row = c * inner;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * row; i += stride) {
        int image = i / row;
        int element = i - image * row;
        result[image * out_row + element] = x[image * x_row + element] + bias[element / inner];
    }
}
