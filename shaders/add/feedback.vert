#version 300 es
// The sum of two arrays that lie alike by transform feedback, whatever the layout: four elements a
// vertex. With channels in groups of four, lanes past the last channel become what the activation
// makes of theirs, a finite number: they meet zero weights in the next layer.
#include "common/activation.glsl"
#include "common/texel.glsl"
uniform highp sampler2D x, y;
out highp vec4 result;

void main() {
    result = activate(texel(x, gl_VertexID) + texel(y, gl_VertexID));
}
