#version 300 es
// Subsampling by transform feedback, planar images: four neighbouring elements of the result a
// vertex, one by one.
#ifndef KERNEL_H
#define KERNEL_H 2
#define KERNEL_W 2
#endif
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp WEIGHT_SAMPLER weight;
uniform highp BIAS_SAMPLER bias;
#include <epilogue>
uniform int c, h, w, oh, ow;
uniform int x_row, out_row;

float mean(int first) {
    float sum = 0.0;
    for (int ky = 0; ky < KERNEL_H; ++ky)
        for (int kx = 0; kx < KERNEL_W; ++kx) sum += texel(x, first + ky * w + kx).x;
    return sum / float(KERNEL_H * KERNEL_W);
}

float element(int image, int i) {
    int row = i / ow;  // of all the channels' rows
    int channel = row / oh;
    if (channel >= c) return 0.0;
    int top = (channel * h + (row - channel * oh) * KERNEL_H) * w;
    int left = (i - row * ow) * KERNEL_W;
    float value = texel(weight, channel).x * mean(image * x_row + top + left);
    return epilogue(value + texel(bias, channel).x, image * out_row + i, channel);
}
#include "common/capture_elements.glsl"
