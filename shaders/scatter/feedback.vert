#version 300 es
// Four words of the result in each vec4, with the updates of each, by transform feedback.
#ifndef X_SAMPLER
#define X_SAMPLER isampler2D
#endif
#ifndef INDEX_SAMPLER
#define INDEX_SAMPLER isampler2D
#endif
#ifndef UPDATES_SAMPLER
#define UPDATES_SAMPLER isampler2D
#endif
#ifndef VECTORS
#define VECTORS 1
#endif
#define NUMBERS ivec4
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp INDEX_SAMPLER index;
uniform highp UPDATES_SAMPLER updates;
#define INDEX(i) texel(index, i).x
#define UPDATE(i) texel(updates, i).x
#include "scatter/updates.glsl"

int word(int place) {
    return updated(place, texel(x, place_in_x(place)).x);
}

ivec4 vector(int i);
#include "common/capture.glsl"

ivec4 vector(int i) {
    ivec4 words = ivec4(0);
    // Not a constant 4: the loop would be unrolled, for which boards have too few registers.
    int lanes = min(out_size, 4);
    for (int lane = 0; lane < lanes; ++lane) words[lane] = word(4 * i + lane);
    return words;
}
