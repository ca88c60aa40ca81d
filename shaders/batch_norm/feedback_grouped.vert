#version 300 es
// Scales and shifts each channel by transform feedback, channels in groups of four: one pixel of
// four channels a vertex.
#include "common/activation.glsl"
#include "common/first_of.glsl"
#include "common/texel.glsl"
uniform highp sampler2D x, scale, shift;
uniform int c, inner;
out highp vec4 result;

void main() {
    int quad = gl_VertexID / inner % ((c + 3) / 4);
    vec4 value = texel(scale, quad) * texel(x, gl_VertexID) + texel(shift, quad);
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    result = first_of(activate(value), c - quad * 4);
}
