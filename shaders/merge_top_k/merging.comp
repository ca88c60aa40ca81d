#version 310 es
// A place of a merged list an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef HAS_PLACES
#define HAS_PLACES 0
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { int x[]; };
layout(std430, binding = 1) buffer Out { int result[]; };
#define WORD(i) x[i]
#if HAS_PLACES
layout(std430, binding = 2) buffer Places { int places[]; };
#define PLACE(i) places[i]
#endif
#include "merge_top_k/merge.glsl"
uniform int results;

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int number = int(INVOCATION_ID.x); number < results; number += stride)
        result[number] = merged(number);
}
