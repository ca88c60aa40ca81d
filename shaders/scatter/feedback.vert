#version 300 es
// Four words a vec4, each with the updates that go there, by transform feedback.
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

ivec4 vector(int i) {
    return ivec4(word(4 * i), word(4 * i + 1), word(4 * i + 2), word(4 * i + 3));
}
#include "common/capture.glsl"
