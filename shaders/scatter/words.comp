#version 310 es
// A word of the result an invocation, with the updates of it.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { int x[]; };
layout(std430, binding = 1) buffer Index { int index[]; };
layout(std430, binding = 2) buffer Updates { int updates[]; };
layout(std430, binding = 3) buffer Out { int result[]; };
#define INDEX(i) index[i]
#define UPDATE(i) updates[i]
#include "scatter/updates.glsl"
uniform int out_size;

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < out_size; i += stride)
        result[i] = updated(i, x[place_in_x(i)]);
}
