#version 300 es
// Scales and shifts each channel by transform feedback, row major: four elements a vertex.
#include "common/activation.glsl"
#include "common/texel.glsl"
uniform highp sampler2D x, scale, shift;
uniform int c, inner;
uniform int out_row;
out highp vec4 result;

float normed(float value, int element) {
    int channel = min(element / inner, c - 1);  // what lies behind the last one is padding
    return texel(scale, channel).x * value + texel(shift, channel).x;
}

void main() {
    int element = gl_VertexID * 4 % out_row;
    vec4 value = texel(x, gl_VertexID);
    result = activate(vec4(normed(value.x, element), normed(value.y, element + 1),
                           normed(value.z, element + 2), normed(value.w, element + 3)));
}
