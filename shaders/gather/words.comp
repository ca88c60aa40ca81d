#version 310 es
// The words of the result, each from where an index says.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#if WIDTH == 4
#define WORDS ivec4
#else
#define WORDS int
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { WORDS x[]; };
layout(std430, binding = 1) buffer Index { int index[]; };
layout(std430, binding = 2) buffer Out { WORDS result[]; };
#define INDEX(i) index[i]
#include "gather/lookup.glsl"
uniform int places;

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < places; i += stride) {
        int target;
        int at = source(i, target);
        result[target] = x[at];
    }
}
