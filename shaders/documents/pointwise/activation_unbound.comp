#version 310 es
// An expression of every element, whatever the layout: one element an invocation, over a grid of
// one dimension (Rovder 2017, section 6.2).
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X0 { float x0[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int out_size;  // floats, padding included
#include <expression>

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < out_size; i += stride)
        result[i] = apply(x0[i]);
}
