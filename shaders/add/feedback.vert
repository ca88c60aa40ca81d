#version 300 es
// The sum of two arrays that lie alike by transform feedback, whatever the layout: four vec4 a
// vertex. With channels in groups of four, lanes past the last channel become what the activation
// makes of theirs, a finite number: they meet zero weights in the next layer.
#include "common/activation.glsl"
in highp mat4 y;

vec4 vector(int i, vec4 value) {
    return activate(value + y[i & 3]);
}
#include "common/capture_each.glsl"
