#version 300 es
// The words of the result by transform feedback, each from where an index says; the operand may be
// of halves (X_HALF), of which its texels make floats.
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef X_SAMPLER
#define X_SAMPLER isampler2D
#endif
#ifndef INDEX_SAMPLER
#define INDEX_SAMPLER isampler2D
#endif
#ifndef VECTORS
#define VECTORS 1
#endif
#ifndef X_HALF
#define X_HALF 0
#endif
#if X_HALF
#define AT(i) floatBitsToInt(texel(x, i))
#else
#define AT(i) texel(x, i)
#endif
#define NUMBERS ivec4
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp INDEX_SAMPLER index;
uniform int x_last, index_last;  // the last places: what lies beyond is padding
#define INDEX(i) texel(index, min(i, index_last)).x
#include "gather/lookup.glsl"

#if WIDTH == 4
ivec4 vector(int i) {
    int target;
    return AT(min(source(i, target), x_last));
}
#else
int word(int place) {
    int target;
    return AT(min(source(place, target), x_last)).x;
}

ivec4 vector(int i) {
    return ivec4(word(4 * i), word(4 * i + 1), word(4 * i + 2), word(4 * i + 3));
}
#endif
#include "common/capture.glsl"
