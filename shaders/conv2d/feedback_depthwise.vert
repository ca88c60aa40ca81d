#version 300 es
// Depthwise convolution by transform feedback, channels in groups of four: one pixel of four
// channels at a time.
#include "common/window.glsl"
#include "common/first_of.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp WEIGHT_SAMPLER weight;
#include <epilogue>
uniform int c, h, w, oh, ow, kernel_h, kernel_w;

vec4 vector(int i) {
    int quads = (c + 3) / 4;
    int plane = i / (oh * ow);
    int pixel = i - plane * (oh * ow);
    int quad = plane % quads;
    int top = pixel / ow * STRIDE_H - PADDING_TOP;
    int left = pixel % ow * STRIDE_W - PADDING_LEFT;
    vec4 sum = vec4(0.0);
    for (int ky = 0; ky < kernel_h; ++ky) {
        int row = top + ky * DILATION_H;
        if (row < 0 || row >= h) continue;
        for (int kx = 0; kx < kernel_w; ++kx) {
            int column = left + kx * DILATION_W;
            if (column < 0 || column >= w) continue;
            sum += texel(x, (plane * h + row) * w + column)
                 * texel(weight, (ky * kernel_w + kx) * quads + quad);
        }
    }
    // Components past the last channel are 0: the next layer multiplies them by zero weights.
    return first_of(epilogue(sum, i, quad), c - quad * 4);
}
#include "common/capture.glsl"
