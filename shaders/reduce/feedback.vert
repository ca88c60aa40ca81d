#version 300 es
// Four results a vertex. With COLUMNS and WIDE they are neighbours and reduced at the same time.
#include "common/texel.glsl"
#ifndef WIDE
#define WIDE 0
#endif
#if WIDE
#define AT(operand, i) texel(operand, i)
#else
#define AT(operand, i) texel(operand, i).x
#endif
#include "reduce/body.glsl"
flat out highp RESULT result;

void main() {
#if COLUMNS && WIDE
    result = finish(SETTLED(reduce_lane(min(gl_VertexID * 4, outputs - 4), 0, 1)));
#else
    for (int i = 0; i < 4; ++i) {
        VALUE lane_value = reduce_lane(min(gl_VertexID * 4 + i, outputs - 1), 0, 1);
#if WIDE
        result[i] = finish(SETTLED(join(join(lane_value.x, lane_value.y), join(lane_value.z, lane_value.w))));
#else
        result[i] = finish(SETTLED(lane_value));
#endif
    }
#endif
}
