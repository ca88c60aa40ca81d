#version 300 es
// The whole cache by transform feedback: each vertex looks for a new token whose row it is.
#ifndef HAS_ROTARY
#define HAS_ROTARY 0
#endif
#ifndef CACHE_SAMPLER
#define CACHE_SAMPLER sampler2D
#endif
#ifndef PLACES_SAMPLER
#define PLACES_SAMPLER isampler2D
#endif
#ifndef ROTARY_SAMPLER
#define ROTARY_SAMPLER sampler2D
#endif
#ifndef VECTORS
#define VECTORS 4
#endif
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp CACHE_SAMPLER cache;
uniform highp PLACES_SAMPLER places;
#if HAS_ROTARY
uniform highp ROTARY_SAMPLER rotary;
#endif
uniform int tokens, heads, width, context, start, values_start, rows, x_row, rotary_row;
#define NUMBER(head, i) texel(x, (head) + (i)).x
#define TABLE(row, i) texel(rotary, (row) + (i)).x
#include "common/rotary.glsl"

// The number at `at` of the cache. Of tokens in order the row's own, if any, is found at once where
// rows follow one another as tokens do.
float number(int at) {
    int keys = heads * width, row = at / (2 * keys), rest = at - row * 2 * keys;
    int found = -1, guess = row - texel(places, 0).x;
    if (guess >= 0 && guess < tokens && texel(places, guess).x == row) found = guess;
    else
        for (int i = 0; i < tokens; ++i)
            if (texel(places, i).x == row) found = i;
    if (row >= rows) found = -1;
    if (found < 0) return texel(cache, min(at, rows * 2 * keys - 1)).x;
    if (rest >= keys) return texel(x, found * x_row + values_start + rest - keys).x;
    int head = rest / width;
    int from = found * x_row + start + head * width;
    return rotated(from, row % context * rotary_row, rest - head * width);
}

vec4 vector(int i) {
    return vec4(number(4 * i), number(4 * i + 1), number(4 * i + 2), number(4 * i + 3));
}
#include "common/capture.glsl"
