#version 300 es
// Scales and shifts each channel by transform feedback, row major: four vec4 a vertex.
#ifndef SCALE_SAMPLER
#define SCALE_SAMPLER sampler2D
#endif
#ifndef SHIFT_SAMPLER
#define SHIFT_SAMPLER sampler2D
#endif
#include "common/texel.glsl"
uniform highp SCALE_SAMPLER scale;
uniform highp SHIFT_SAMPLER shift;
#include <epilogue>
uniform int c, inner;
uniform int out_row;

float normed(float value, int element) {
    int channel = min(element / inner, c - 1);  // what lies behind the last one is padding
    return texel(scale, channel).x * value + texel(shift, channel).x;
}

vec4 vector(int i, vec4 value) {
    int element = i * 4 % out_row;
    vec4 found = vec4(normed(value.x, element), normed(value.y, element + 1),
                      normed(value.z, element + 2), normed(value.w, element + 3));
    return epilogue(found, i, 0);
}
#include "common/capture_each.glsl"
