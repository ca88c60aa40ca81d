#version 310 es
// Scales and shifts each channel, row major: one element an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Scale { float scale[]; };
layout(std430, binding = 2) buffer Shift { float shift[]; };
layout(std430, binding = 3) buffer Out { float result[]; };
#include <epilogue>
uniform int n, c, inner;
uniform int x_row, out_row;

void main() {
    int row = c * inner;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * row; i += stride) {
        int image = i / row;
        int element = i - image * row;
        int channel = element / inner;
        float value = scale[channel] * x[image * x_row + element] + shift[channel];
        int place = image * out_row + element;
        result[place] = epilogue(value, place, channel);
    }
}
