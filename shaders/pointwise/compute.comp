#version 310 es
// An expression of operands that broadcast, in any layout: a vec4 an invocation.
// STRIP: the result is some channels of wider images, in `target`.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef STRIP
#define STRIP 0
#endif
#include "common/launch.glsl"
#include "pointwise/value.glsl"
layout(local_size_x = WG_X) in;
#include "common/fours.glsl"
layout(std430, binding = 0) buffer Out { OUT_FOUR result[]; };
uniform int out_size;  // numbers, padding included
#if STRIP
uniform int target_stride[RANK], target_first, target_size;
#endif

// The index in memory of vec4 `quad` of the result.
int target(int quad) {
#if STRIP
    return where(indices(4 * quad), target_stride, target_first, target_size) / 4;
#else
    return quad;
#endif
}

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    int quads = (out_size + 3) / 4;
    for (int i = int(INVOCATION_ID.x); i < quads; i += stride)
        result[target(i)] = STORED(value(i, 0));
}
