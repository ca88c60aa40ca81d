#version 310 es
// One function of every element, whatever the layout: four elements an invocation
// (Rovder 2017, section 9.2, unbound 1-D).
#ifndef WG_X
#define WG_X 64
#endif
#include "activation/function.glsl"
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
uniform int out_size;  // floats, padding included

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < out_size / 4; i += stride)
        result[i] = activate(x[i]);
}
