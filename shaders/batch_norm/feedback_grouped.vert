#version 300 es
// Scales and shifts each channel by transform feedback, channels in groups of four: four
// neighbouring pixels of four channels a vertex.
#include "common/first_of.glsl"
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

vec4 vector(int i, vec4 value) {
    int quad = i / inner % ((c + 3) / 4);
    value = texel(scale, quad) * value + texel(shift, quad);
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    return first_of(epilogue(value, i, quad), c - quad * 4);
}
#include "common/capture_each.glsl"
