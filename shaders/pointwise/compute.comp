#version 310 es
// An expression of operands that broadcast, in any layout: a vec4 an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
#include "pointwise/value.glsl"
layout(local_size_x = WG_X) in;
#include "common/fours.glsl"
layout(std430, binding = 0) buffer Out { OUT_FOUR result[]; };
uniform int out_size;  // numbers, padding included

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    int quads = (out_size + 3) / 4;
    for (int i = int(INVOCATION_ID.x); i < quads; i += stride) result[i] = STORED(value(i, 0));
}
