#version 300 es
// One function of every element by transform feedback, whatever the layout: four elements a vertex.
#include "common/activation.glsl"
#include "common/texel.glsl"
uniform highp sampler2D x;
out highp vec4 result;

void main() {
    result = activate(texel(x, gl_VertexID));
}
