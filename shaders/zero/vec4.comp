#version 310 es
// Zeros, four an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer Out { vec4 result[]; };
uniform int out_size;

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); 4 * i < out_size; i += stride) result[i] = vec4(0.0);
}
