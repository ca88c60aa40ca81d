#version 300 es
// Adds bias[channel] to every element of a channel by transform feedback, channels in groups of
// four: four neighbouring pixels of four channels a vertex.
#include "common/first_of.glsl"
#include "common/texel.glsl"
uniform highp BIAS_SAMPLER bias;
uniform int c, inner;

vec4 vector(int i, vec4 value) {
    int quad = i / inner % ((c + 3) / 4);
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    return first_of(value + texel(bias, quad), c - quad * 4);
}
#include "common/capture_each.glsl"
