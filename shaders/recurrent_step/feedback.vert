#version 300 es
// A new state of four units in each vec4, by transform feedback: each vertex computes whole sums.
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
    int place = i / RESULTS, row_quad = place / quads;
    int quad = place - row_quad * quads, direction = row_quad / batch;
    vec4 sums[GATES];
    for (int gate = 0; gate < GATES; ++gate) {
        int first = ((direction * GATES + gate) * quads + quad) * 4 * quads;
        vec4 sum = vec4(0.0);
        for (int k = 0; k < quads; ++k) {
            vec4 h = texel(state, (row_quad * quads + k) * STATES + SUMMED);
            int index = first + k;
            sum += vec4(dot(texel(weight, index), h), dot(texel(weight, index + quads), h),
                        dot(texel(weight, index + 2 * quads), h),
                        dot(texel(weight, index + 3 * quads), h));
        }
        sums[gate] = sum;
    }
    int row = row_quad - direction * batch;
    int from = ((direction * steps + now) * batch + row) * INPUTS * quads + quad;
    vec4 values = vec4(0.0);
    for (int lane = 0; lane < min(units - 4 * quad, 4); ++lane) {  // one unit at a time saves registers
        float own_sums[GATES], inputs[INPUTS], old_states[STATES];
        for (int k = 0; k < GATES; ++k) own_sums[k] = sums[k][lane];
        for (int k = 0; k < INPUTS; ++k) inputs[k] = texel(x, from + k * quads)[lane];
        for (int k = 0; k < STATES; ++k) old_states[k] = texel(state, place * STATES + k)[lane];
        values[lane] = new_state(i - place * RESULTS, own_sums, inputs, old_states);
    }
    return values;
}
#include "common/capture.glsl"
