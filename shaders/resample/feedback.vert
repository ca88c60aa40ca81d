#version 300 es
// Weighted sums of a few elements along an axis by transform feedback: four results a vec4.
#ifndef INDEX_SAMPLER
#define INDEX_SAMPLER isampler2D
#endif
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp INDEX_SAMPLER index;
uniform highp WEIGHT_SAMPLER weight;
#define X(i) texel(x, i).x
#define INDEX(i) texel(index, i).x
#define WEIGHT(i) texel(weight, i).x
#include "resample/sum.glsl"
uniform int places;

vec4 vector(int i) {
    vec4 values = vec4(0.0);
    for (int k = 0; k < 4; ++k)
        if (4 * i + k < places) values[k] = sum_at(4 * i + k);
    return values;
}
#include "common/capture.glsl"
