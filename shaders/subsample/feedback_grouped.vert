#version 300 es
// Subsampling by transform feedback, channels in groups of four: one pixel of four channels a
// vertex.
#ifndef KERNEL_H
#define KERNEL_H 2
#define KERNEL_W 2
#endif
#include "common/activation.glsl"
#include "common/first_of.glsl"
#include "common/texel.glsl"
uniform highp sampler2D x, weight, bias;
uniform int c, h, w, oh, ow;
out highp vec4 result;

vec4 mean(int first) {
    vec4 sum = vec4(0.0);
    for (int ky = 0; ky < KERNEL_H; ++ky)
        for (int kx = 0; kx < KERNEL_W; ++kx) sum += texel(x, first + ky * w + kx);
    return sum / float(KERNEL_H * KERNEL_W);
}

void main() {
    int row = gl_VertexID / ow;  // of all the planes' rows
    int plane = row / oh;
    int quad = plane % ((c + 3) / 4);
    int top = (plane * h + (row - plane * oh) * KERNEL_H) * w;
    int left = (gl_VertexID - row * ow) * KERNEL_W;
    vec4 value = texel(weight, quad) * mean(top + left) + texel(bias, quad);
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    result = first_of(activate(value), c - quad * 4);
}
