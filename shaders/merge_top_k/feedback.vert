#version 300 es
// The places of lists that are merged.
#ifndef X_SAMPLER
#define X_SAMPLER isampler2D
#endif
#ifndef PLACES_SAMPLER
#define PLACES_SAMPLER isampler2D
#endif
#ifndef HAS_PLACES
#define HAS_PLACES 0
#endif
#ifndef VECTORS
#define VECTORS 1
#endif
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
#define WORD(i) texel(x, i).x
#if HAS_PLACES
uniform highp PLACES_SAMPLER places;
#define PLACE(i) texel(places, i).x
#endif
#include "merge_top_k/merge.glsl"
uniform int results;
#define NUMBERS ivec4

ivec4 vector(int i) {
    ivec4 found = ivec4(0);
    for (int lane = 0; lane < 4; ++lane) found[lane] = merged(min(4 * i + lane, results - 1));
    return found;
}
#include "common/capture.glsl"
