#version 300 es
// Convolution by transform feedback with any number of groups: a vertex computes four neighbouring
// elements of the planar result, one by one.
#include "common/window.glsl"
#include "conv2d/groups.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp WEIGHT_SAMPLER weight;
#include <epilogue>
uniform int c, h, w, o, oh, ow;
uniform int x_row, out_row;

float element(int image, int i) {
    int pixel = i % (oh * ow);
    int output_channel = i / (oh * ow);
    if (output_channel >= o) return 0.0;
    int top = pixel / ow * STRIDE_H - PADDING_TOP;
    int left = pixel % ow * STRIDE_W - PADDING_LEFT;
    int channels = c / GROUPS;
    int group = output_channel / (o / GROUPS);
    float sum = 0.0;
    for (int channel = 0; channel < channels; ++channel) {
        for (int ky = 0; ky < KERNEL_H; ++ky) {
            int row = top + ky * DILATION_H;
            if (row < 0 || row >= h) continue;
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                int column = left + kx * DILATION_W;
                if (column < 0 || column >= w) continue;
                int place = ((group * channels + channel) * h + row) * w + column;
                int tap = ((output_channel * channels + channel) * KERNEL_H + ky) * KERNEL_W + kx;
                sum += texel(x, image * x_row + place).x * texel(weight, tap).x;
            }
        }
    }
    return epilogue(sum, image * out_row + i, output_channel);
}
#include "common/capture_elements.glsl"
