#version 300 es
// Convolution by transform feedback, channels in groups of four: a vertex computes one pixel of
// four output channels, and each tap is four weight texels times one texel of the input.
#ifndef KERNEL_H
#define KERNEL_H 3
#define KERNEL_W 3
#define STRIDE_H 1
#define STRIDE_W 1
#define PADDING_TOP 1
#define PADDING_LEFT 1
#define DILATION_H 1
#define DILATION_W 1
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#include "common/activation.glsl"
#include "common/texel.glsl"
uniform highp sampler2D x, weight;
#if HAS_BIAS
uniform highp sampler2D bias;
#endif
uniform int c, h, w, o, oh, ow;
out highp vec4 result;

void main() {
    int pixel = gl_VertexID % (oh * ow);
    int plane = gl_VertexID / (oh * ow);
    int quads = (o + 3) / 4;
    int image = plane / quads;
    int quad = plane - image * quads;
    int top = pixel / ow * STRIDE_H - PADDING_TOP;
    int left = pixel % ow * STRIDE_W - PADDING_LEFT;
    int groups = (c + 3) / 4;
    vec4 sum = vec4(0.0);
    for (int group = 0; group < groups; ++group) {
        for (int ky = 0; ky < KERNEL_H; ++ky) {
            int row = top + ky * DILATION_H;
            if (row < 0 || row >= h) continue;
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                int column = left + kx * DILATION_W;
                if (column < 0 || column >= w) continue;
                vec4 a = texel(x, ((image * groups + group) * h + row) * w + column);
                int tap = (((quad * groups + group) * KERNEL_H + ky) * KERNEL_W + kx) * 4;
                sum += a.x * texel(weight, tap) + a.y * texel(weight, tap + 1)
                     + a.z * texel(weight, tap + 2) + a.w * texel(weight, tap + 3);
            }
        }
    }
#if HAS_BIAS
    sum += texel(bias, quad);
#endif
    sum = activate(sum);
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    int rest = o - quad * 4;
    result = vec4(sum.x, rest > 1 ? sum.y : 0.0, rest > 2 ? sum.z : 0.0, rest > 3 ? sum.w : 0.0);
}
