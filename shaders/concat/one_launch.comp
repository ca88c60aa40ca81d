#version 310 es
// COUNT operands behind one another in one launch: a word, or four together, an invocation. The host
// writes the buffers.
#ifndef COUNT
#define COUNT 2
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef WG_X
#define WG_X 64
#endif
#if WIDTH == 4
#define NUMBERS ivec4
#else
#define NUMBERS int
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer Out { NUMBERS result[]; };
#include <operands>
#define FETCHED(x, i) x[i]
#include "concat/fetch.glsl"
uniform int places;

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < places; i += stride) result[i] = fetch(i);
}
