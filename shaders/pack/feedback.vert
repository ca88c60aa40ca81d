#version 300 es
// Packs the low 8 bits of four numbers into a word, the first in its lowest byte: four words a vec4.
#ifndef VECTORS
#define VECTORS 4
#endif
#ifndef X_SAMPLER
#define X_SAMPLER isampler2D
#endif
#include "common/texel.glsl"
#include "pack/word.glsl"
uniform highp X_SAMPLER x;
uniform int fours;
flat out highp ivec4 result[VECTORS];

// The i-th word; past the end the last one.
int word(int i) {
    return word_of(texel(x, min(i, fours - 1)));
}

void main() {
    for (int i = 0; i < VECTORS; ++i) {
        int first = 4 * (gl_VertexID * VECTORS + i);
        result[i] = ivec4(word(first), word(first + 1), word(first + 2), word(first + 3));
    }
}
