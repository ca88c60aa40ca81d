#version 310 es
// The sum of two arrays that lie alike, whatever the layout: four elements an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Y { vec4 y[]; };
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#include <epilogue>
uniform int out_size;  // floats, padding included

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < out_size / 4; i += stride)
        result[i] = epilogue(x[i] + y[i], i, 0);
}
