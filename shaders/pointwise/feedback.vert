#version 300 es
// An expression of operands that broadcast, in any layout, by transform feedback: VECTORS vec4 a
// vertex. Past the end, the last one is repeated.
#ifndef VECTORS
#define VECTORS 4
#endif
#include "common/texel.glsl"
#include "pointwise/value.glsl"
uniform int out_size;
flat out highp RESULT result[VECTORS];

void main() {
    int last = (out_size + 3) / 4 - 1;
    for (int i = 0; i < VECTORS; ++i) result[i] = value(min(gl_VertexID * VECTORS + i, last), i);
}
