#version 300 es
// A pool's gradient by transform feedback: one pixel of four channels a vertex.
#include "common/first_of.glsl"
#include "common/texel.glsl"
#ifndef HAS_X
#define HAS_X 1
#endif
#ifndef DY_SAMPLER
#define DY_SAMPLER sampler2D
#endif
#ifndef Y_SAMPLER
#define Y_SAMPLER sampler2D
#endif
uniform highp DY_SAMPLER dy;
#if HAS_X
uniform highp X_SAMPLER x;
uniform highp Y_SAMPLER y;
#endif
uniform int c;
#define NUMBER vec4
#define DY(i) texel(dy, i)
#define X(i) texel(x, i)
#define Y(i) texel(y, i)
#include "pool2d_gradient/gather.glsl"
#include <epilogue>

vec4 vector(int i) {
    int group = i / (h * w);
    int pixel = i - group * h * w;
    int row = pixel / w;
    int windows = group * oh * ow;
    vec4 value = gathered(row, pixel - row * w, windows, group * h * w, windows);
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    int quad = group % ((c + 3) / 4);
    return first_of(epilogue(value, i, quad), c - quad * 4);
}
#include "common/capture.glsl"
