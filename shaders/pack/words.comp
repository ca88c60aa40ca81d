#version 310 es
// Packs the low 8 bits of four numbers into a word, the first in its lowest byte: a word an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
#include "pack/word.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { ivec4 x[]; };
layout(std430, binding = 1) buffer Out { int result[]; };
uniform int fours;

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < fours; i += stride) result[i] = word_of(x[i]);
}
