#version 300 es
// Convolution by transform feedback, channels in groups of four: a vertex computes PX neighbouring
// pixels of four output channels, and each tap is four weight texels times a texel of each pixel.
#ifndef PX
#define PX 1
#endif
#include "common/window.glsl"
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#include "common/activation.glsl"
#include "common/texel.glsl"
uniform highp sampler2D x, weight;
#if HAS_BIAS
uniform highp sampler2D bias;
#endif
uniform int n, c, h, w, o, oh, ow;
out highp vec4 result[PX];

// The texel of the input that a pixel's tap meets, 0 outside of the image.
vec4 met(int image, int group, ivec2 corner, int ky, int kx) {
    int row = corner.y + ky * DILATION_H, column = corner.x + kx * DILATION_W;
    if (row < 0 || row >= h || column < 0 || column >= w) return vec4(0.0);
    return texel(x, ((image * ((c + 3) / 4) + group) * h + row) * w + column);
}

ivec2 corner(int pixel) {
    return ivec2(pixel % ow * STRIDE_W - PADDING_LEFT, pixel / ow * STRIDE_H - PADDING_TOP);
}

vec4 finished(vec4 sum, int quad) {
#if HAS_BIAS
    sum += texel(bias, quad);
#endif
    sum = activate(sum);
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    int rest = o - quad * 4;
    return vec4(sum.x, rest > 1 ? sum.y : 0.0, rest > 2 ? sum.z : 0.0, rest > 3 ? sum.w : 0.0);
}

// `count` pixels from `pixel` on, all of one image and four channels, from result[to] on.
void convolve(int plane, int pixel, const int to, const int count) {
    int quads = (o + 3) / 4;
    int image = plane / quads;
    int quad = plane - image * quads;
    int groups = (c + 3) / 4;
    ivec2 corners[PX];
    vec4 sum[PX];
    for (int i = 0; i < count; ++i) {
        corners[i] = corner(pixel + i);
        sum[i] = vec4(0.0);
    }
    for (int group = 0; group < groups; ++group) {
        for (int ky = 0; ky < KERNEL_H; ++ky) {
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                int tap = (((quad * groups + group) * KERNEL_H + ky) * KERNEL_W + kx) * 4;
#if PX == 1
                vec4 a = met(image, group, corners[0], ky, kx);
                sum[0] += a.x * texel(weight, tap) + a.y * texel(weight, tap + 1)
                        + a.z * texel(weight, tap + 2) + a.w * texel(weight, tap + 3);
#else
                vec4 w0 = texel(weight, tap), w1 = texel(weight, tap + 1);
                vec4 w2 = texel(weight, tap + 2), w3 = texel(weight, tap + 3);
                for (int i = 0; i < count; ++i) {
                    vec4 a = met(image, group, corners[i], ky, kx);
                    sum[i] += a.x * w0 + a.y * w1 + a.z * w2 + a.w * w3;
                }
#endif
            }
        }
    }
    for (int i = 0; i < count; ++i) result[to + i] = finished(sum[i], quad);
}

void main() {
    int first = gl_VertexID * PX;
    int pixels = oh * ow;
    int plane = first / pixels;
    int pixel = first - plane * pixels;
#if PX == 1
    convolve(plane, pixel, 0, 1);
#else
    if (pixel + PX <= pixels) {
        convolve(plane, pixel, 0, PX);
        return;
    }
    // The rest of one plane and the beginning of the next; past the last there is only padding.
    int last = n * ((o + 3) / 4) - 1;
    for (int i = 0; i < PX; ++i) {
        int at = first + i;
        convolve(min(at / pixels, last), at % pixels, i, 1);
    }
#endif
}
