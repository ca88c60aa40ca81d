#version 300 es
// Adds bias[channel] to every element of a channel by transform feedback: four elements a vertex.
#include "common/texel.glsl"
uniform highp sampler2D x, bias;
uniform int c, inner;
uniform int out_row;
out highp vec4 result;

float shift(int element) {
    return texel(bias, min(element / inner, c - 1)).x;
}

void main() {
    int element = gl_VertexID * 4 % out_row;
    result = texel(x, gl_VertexID) + vec4(shift(element), shift(element + 1), shift(element + 2),
                                          shift(element + 3));
}
