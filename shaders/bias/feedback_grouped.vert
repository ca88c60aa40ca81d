#version 300 es
// Adds bias[channel] to every element of a channel by transform feedback, channels in groups of
// four: one pixel of four channels a vertex.
#include "common/first_of.glsl"
#include "common/texel.glsl"
uniform highp sampler2D x, bias;
uniform int c, inner;
out highp vec4 result;

void main() {
    int quad = gl_VertexID / inner % ((c + 3) / 4);
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    result = first_of(texel(x, gl_VertexID) + texel(bias, quad), c - quad * 4);
}
