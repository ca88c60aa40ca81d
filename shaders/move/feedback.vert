#version 300 es
// The words of the result by transform feedback, each from where the map says.
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef X_SAMPLER
#define X_SAMPLER isampler2D
#endif
#ifndef VECTORS
#define VECTORS 1
#endif
#define NUMBERS ivec4
#include "common/texel.glsl"
#include "move/map.glsl"
uniform highp X_SAMPLER x;
uniform int fill, x_last;  // x_last: the operand's last place

#if WIDTH == 4
ivec4 vector(int i) {
    int target;
    int at = source(i, target);
    ivec4 words = texel(x, clamp(at, 0, x_last));
    return at < 0 ? ivec4(fill) : words;
}
#else
int word(int place) {
    int target;
    int at = source(place, target);
    int value = texel(x, clamp(at, 0, x_last)).x;
    return at < 0 ? fill : value;
}

#if EDGE >= 3
uniform int lanes;  // 4, but not a constant: boards run out of registers where the loop is unrolled

ivec4 vector(int i) {
    ivec4 words = ivec4(0);
    for (int j = 0; j < lanes; ++j) words[j] = word(4 * i + j);
    return words;
}
#else
ivec4 vector(int i) {
    return ivec4(word(4 * i), word(4 * i + 1), word(4 * i + 2), word(4 * i + 3));
}
#endif
#endif
#include "common/capture.glsl"
