#version 300 es
// Adds bias[channel] to every element of a channel by transform feedback: four vec4 a vertex.
#include "common/texel.glsl"
uniform highp BIAS_SAMPLER bias;
uniform int c, inner;
uniform int out_row;

float shift(int element) {
    return texel(bias, min(element / inner, c - 1)).x;
}

vec4 vector(int i, vec4 value) {
    int element = i * 4 % out_row;
    return value + vec4(shift(element), shift(element + 1), shift(element + 2),
                        shift(element + 3));
}
#include "common/capture_each.glsl"
