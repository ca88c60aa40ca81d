#version 300 es
// Convolution by transform feedback, channels in groups of four: a vertex computes PX neighbouring
// pixels of four output channels. A tap is four texels of the weights times one of each pixel; where
// the pixels' windows overlap along a row, each texel of the input is fetched once for all of them.
#ifndef PX
#define PX 4
#endif
#include "common/window.glsl"
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#include "common/activation.glsl"
#include "common/first_of.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp WEIGHT_SAMPLER weight;
#if HAS_BIAS
uniform highp BIAS_SAMPLER bias;
#endif
uniform int n, c, h, w, o, oh, ow;
out highp vec4 result[PX];

ivec2 corner(int pixel) {
    return ivec2(pixel % ow * STRIDE_W - PADDING_LEFT, pixel / ow * STRIDE_H - PADDING_TOP);
}

// Whether an input of so many places has one at `i`.
bool has(int places, int i) {
    return uint(i) < uint(places);
}

vec4 finished(vec4 sum, int quad) {
#if HAS_BIAS
    sum += texel(bias, quad);
#endif
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    return first_of(activate(sum), o - quad * 4);
}

// One pixel by itself.
vec4 alone(int plane, int pixel) {
    int quads = (o + 3) / 4, groups = (c + 3) / 4;
    int image = plane / quads;
    int quad = plane - image * quads;
    ivec2 at = corner(pixel);
    vec4 sum = vec4(0.0);
    for (int group = 0; group < groups; ++group) {
        for (int ky = 0; ky < KERNEL_H; ++ky) {
            int row = at.y + ky * DILATION_H;
            if (!has(h, row)) continue;
            int start = ((image * groups + group) * h + row) * w;
            int tap = ((quad * groups + group) * KERNEL_H + ky) * KERNEL_W * 4;
            for (int kx = 0; kx < KERNEL_W; ++kx, tap += 4) {
                int column = at.x + kx * DILATION_W;
                if (!has(w, column)) continue;
                vec4 a = texel(x, start + column);
                sum += a.x * texel(weight, tap) + a.y * texel(weight, tap + 1)
                     + a.z * texel(weight, tap + 2) + a.w * texel(weight, tap + 3);
            }
        }
    }
    return finished(sum, quad);
}

#if PX > 1
#if STRIDE_W == 1 && (PX - 1) + (KERNEL_W - 1) * DILATION_W < 2 * PX + 4
#define SPAN (PX + (KERNEL_W - 1) * DILATION_W)  // of the windows of all pixels, along a row
#else
#define SPAN 0
#endif

// PX pixels of one image and four channels.
void together(int plane, int pixel) {
    int quads = (o + 3) / 4, groups = (c + 3) / 4;
    int image = plane / quads;
    int quad = plane - image * quads;
    ivec2 corners[PX];
    vec4 sum[PX];
    for (int i = 0; i < PX; ++i) {
        corners[i] = corner(pixel + i);
        sum[i] = vec4(0.0);
    }
#if SPAN
    // Pixels that follow one another in memory meet inputs that do: in a row, and across its end
    // where the result is as wide as the input.
    bool following = (STRIDE_H == 1 && ow == w) || corners[PX - 1].y == corners[0].y;
    int last = n * groups * h * w - 1;
#endif
    for (int group = 0; group < groups; ++group) {
        int start = (image * groups + group) * h;
        for (int ky = 0; ky < KERNEL_H; ++ky) {
            int tap = ((quad * groups + group) * KERNEL_H + ky) * KERNEL_W * 4;
#if SPAN
            vec4 met[SPAN];
            int first = (start + corners[0].y + ky * DILATION_H) * w + corners[0].x;
            if (following)
                for (int i = 0; i < SPAN; ++i) met[i] = texel(x, clamp(first + i, 0, last));
#endif
            for (int kx = 0; kx < KERNEL_W; ++kx, tap += 4) {
                vec4 w0 = texel(weight, tap), w1 = texel(weight, tap + 1);
                vec4 w2 = texel(weight, tap + 2), w3 = texel(weight, tap + 3);
                for (int i = 0; i < PX; ++i) {
                    int row = corners[i].y + ky * DILATION_H;
                    int column = corners[i].x + kx * DILATION_W;
                    if (!has(h, row) || !has(w, column)) continue;
#if SPAN
                    vec4 a = met[i + kx * DILATION_W];
                    if (!following) a = texel(x, (start + row) * w + column);
#else
                    vec4 a = texel(x, (start + row) * w + column);
#endif
                    sum[i] += a.x * w0 + a.y * w1 + a.z * w2 + a.w * w3;
                }
            }
        }
    }
    for (int i = 0; i < PX; ++i) result[i] = finished(sum[i], quad);
}
#endif

void main() {
    int first = gl_VertexID * PX;
    int pixels = oh * ow;
    int plane = first / pixels;
    int pixel = first - plane * pixels;
#if PX == 1
    result[0] = alone(plane, pixel);
#else
    if (pixel + PX <= pixels) {
        together(plane, pixel);
        return;
    }
    // The rest of one plane and the beginning of the next; past the last there is only padding.
    int last = n * ((o + 3) / 4) - 1;
    for (int i = 0; i < PX; ++i) {
        int at = first + i;
        result[i] = alone(min(at / pixels, last), at % pixels);
    }
#endif
}
