#version 300 es
// A new state of four units a vec4, with the whole sums, by transform feedback.
#ifndef VECTORS
#define VECTORS 1
#endif
#ifndef STATE_SAMPLER
#define STATE_SAMPLER sampler2D
#endif
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp WEIGHT_SAMPLER weight;
uniform highp STATE_SAMPLER state;
#include "recurrent_step/cell.glsl"

vec4 vector(int i) {
    int place = i / RESULTS, own = place / quads;
    int quad = place - own * quads, direction = own / batch;
    vec4 sums[GATES];
    for (int gate = 0; gate < GATES; ++gate) {
        int first = ((direction * GATES + gate) * quads + quad) * 4 * quads;
        vec4 sum = vec4(0.0);
        for (int k = 0; k < quads; ++k) {
            vec4 h = texel(state, (own * quads + k) * STATES + SUMMED);
            int at = first + k;
            sum += vec4(dot(texel(weight, at), h), dot(texel(weight, at + quads), h),
                        dot(texel(weight, at + 2 * quads), h),
                        dot(texel(weight, at + 3 * quads), h));
        }
        sums[gate] = sum;
    }
    int row = own - direction * batch;
    int from = ((direction * steps + now) * batch + row) * INPUTS * quads + quad;
    vec4 found = vec4(0.0);
    for (int lane = 0; lane < min(units - 4 * quad, 4); ++lane) {  // a unit at a time: registers
        float own_sums[GATES], inputs[INPUTS], before[STATES];
        for (int k = 0; k < GATES; ++k) own_sums[k] = sums[k][lane];
        for (int k = 0; k < INPUTS; ++k) inputs[k] = texel(x, from + k * quads)[lane];
        for (int k = 0; k < STATES; ++k) before[k] = texel(state, place * STATES + k)[lane];
        found[lane] = new_state(i - place * RESULTS, own_sums, inputs, before);
    }
    return found;
}
#include "common/capture.glsl"
