#version 300 es
// The sum of two arrays that lie alike by transform feedback, whatever the layout: four vec4 a
// vertex. With channels in groups of four, lanes past the last channel become what the epilogue
// makes of theirs, a finite number: they meet zero weights in the next layer.
#include <epilogue>
in highp mat4 y;

vec4 vector(int i, vec4 value) {
    return epilogue(value + y[i & 3], i, 0);
}
#include "common/capture_each.glsl"
