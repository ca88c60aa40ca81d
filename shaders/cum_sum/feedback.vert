#version 300 es
// Four results a vec4, each of which adds its own numbers up, by transform feedback.
#ifndef VECTORS
#define VECTORS 1
#endif
#ifndef X_SAMPLER
#define X_SAMPLER isampler2D
#endif
#include "common/texel.glsl"
#include "cum_sum/numbers.glsl"
#define NUMBERS ivec4
uniform highp X_SAMPLER x;
uniform int extent, apart, pitch;  // numbers of a line, how far apart they and the lines' groups lie
#if FLOATS
#define X(i) intBitsToFloat(texel(x, i).x)
#define WORD(sum) floatBitsToInt(sum)
#else
#define X(i) texel(x, i).x
#define WORD(sum) sum
#endif
#define RUN 64  // numbers of a run: what is added up one by one stays short

int word(int place) {
    int along = place % pitch / apart, from = place - along * apart;
    int first = REVERSE == 1 ? along + EXCLUSIVE : 0;
    int last = REVERSE == 1 ? extent : along + 1 - EXCLUSIVE;
    NUMBER sum = IDENTITY;
    for (int i = first; i < last;) {
        NUMBER run = IDENTITY;
        for (int stop = min(i + RUN, last); i < stop; ++i) run = BOTH(run, X(from + i * apart));
        sum = BOTH(sum, run);
    }
    return WORD(sum);
}

ivec4 vector(int i) {
    return ivec4(word(4 * i), word(4 * i + 1), word(4 * i + 2), word(4 * i + 3));
}
#include "common/capture.glsl"
