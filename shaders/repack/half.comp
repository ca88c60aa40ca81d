#version 310 es
// A row-major matrix to half precision, the numbers two by two; whatever pads its rows goes along.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { vec2 x[]; };
layout(std430, binding = 1) buffer Out { uint result[]; };
uniform int out_size;  // pairs

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < out_size; i += stride)
        result[i] = packHalf2x16(x[i]);
}
