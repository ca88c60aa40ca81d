#version 300 es
// Subsampling by transform feedback, channels in groups of four: one pixel of four channels a
// vertex.
#ifndef KERNEL_H
#define KERNEL_H 2
#define KERNEL_W 2
#endif
#include "common/first_of.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp WEIGHT_SAMPLER weight;
uniform highp BIAS_SAMPLER bias;
#include <epilogue>
uniform int c, h, w, oh, ow;

vec4 mean(int first) {
    vec4 sum = vec4(0.0);
    for (int ky = 0; ky < KERNEL_H; ++ky)
        for (int kx = 0; kx < KERNEL_W; ++kx) sum += texel(x, first + ky * w + kx);
    return sum / float(KERNEL_H * KERNEL_W);
}

vec4 vector(int i) {
    int row = i / ow;  // of all the planes' rows
    int plane = row / oh;
    int quad = plane % ((c + 3) / 4);
    int top = (plane * h + (row - plane * oh) * KERNEL_H) * w;
    int left = (i - row * ow) * KERNEL_W;
    vec4 value = texel(weight, quad) * mean(top + left) + texel(bias, quad);
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    return first_of(epilogue(value, i, quad), c - quad * 4);
}
#include "common/capture.glsl"
