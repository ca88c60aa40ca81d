#version 300 es
// A convolution's gradient by what it convolves by transform feedback, any number of groups: a vertex
// computes four neighbouring numbers of the planar result, one by one. The weight is taken as it lies.
#include "common/window.glsl"
#ifndef GROUPS
#define GROUPS 1
#endif
#include "common/texel.glsl"
#ifndef DY_SAMPLER
#define DY_SAMPLER sampler2D
#endif
uniform highp DY_SAMPLER dy;
uniform highp WEIGHT_SAMPLER weight;
#include <epilogue>
uniform int c, h, w, o, oh, ow, share, o_group;
uniform int dy_row, out_row;
#define PX 1
#include "conv2d_input_gradient/columns.glsl"

float element(int image, int i) {
    int channel = i / (h * w);
    if (channel >= c) return 0.0;
    int pixel = i - channel * h * w;
    int row = pixel / w;
    int column = pixel - row * w;
    int group = channel / share;
    float sum = 0.0;
    for (int j = 0; j < o_group; ++j) {
        int from = group * o_group + j;
        int tap = (from * share + channel - group * share) * (KERNEL_H * KERNEL_W);
        int start = image * dy_row + from * oh * ow;
        for (int ky = 0; ky < KERNEL_H; ++ky) {
            int y = dy_row_of(row, ky);
            if (y < 0) continue;
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                int x = dy_column_of(column, kx);
                if (x < 0 || x >= ow) continue;
                sum += texel(dy, start + y * ow + x).x * texel(weight, tap + ky * KERNEL_W + kx).x;
            }
        }
    }
    return epilogue(sum, image * out_row + i, channel);
}
#include "common/capture_elements.glsl"
