#version 300 es
// A prefix sum by transform feedback: four results a vec4, each summed from the first number on.
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
uniform int extent, apart, pitch;  // length of a line, its stride, and that of groups of lines
#if FLOATS
#define X(i) intBitsToFloat(texel(x, i).x)
#define WORD(sum) floatBitsToInt(sum)
#else
#define X(i) texel(x, i).x
#define WORD(sum) sum
#endif
#define RUN 64  // numbers of a run: runs are summed first, against rounding

int word(int place) {
    int index = place % pitch / apart, line_begin = place - index * apart;
    int first = REVERSE == 1 ? index + EXCLUSIVE : 0;
    int last = REVERSE == 1 ? extent : index + 1 - EXCLUSIVE;
    NUMBER sum = IDENTITY;
    for (int i = first; i < last;) {
        NUMBER run = IDENTITY;
        for (int stop = min(i + RUN, last); i < stop; ++i) run = BOTH(run, X(line_begin + i * apart));
        sum = BOTH(sum, run);
    }
    return WORD(sum);
}

ivec4 vector(int i) {
    return ivec4(word(4 * i), word(4 * i + 1), word(4 * i + 2), word(4 * i + 3));
}
#include "common/capture.glsl"
