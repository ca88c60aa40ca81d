#version 300 es
// Convolution by transform feedback, channels in groups of four: a vertex computes PX neighbouring
// pixels of four output channels. A tap is four texels of the weights times one of each pixel.
// With REUSE, where the windows of the pixels overlap along a row of the input, or in memory, each
// texel of it is fetched once for all of them. Macros decide this: all vertices take the same path. Loop
// bounds are uniforms, so that compilers do not unroll the loops and run out of registers.
#ifndef PX
#define PX 4
#endif
#ifndef REUSE
#define REUSE 0
#endif
#include "common/window.glsl"
#ifndef PADDED
#define PADDED 1
#endif
// The greatest powers of two, up to 16, that divide a row and a plane of the result.
#ifndef ROW_UNIT
#define ROW_UNIT 16
#endif
#ifndef PLANE_UNIT
#define PLANE_UNIT 16
#endif
#ifndef FOLLOWS
#define FOLLOWS 1  // neighbouring pixels read neighbouring inputs, also across the end of rows
#endif
#include "common/first_of.glsl"
#include "common/texel.glsl"
#define SPAN ((PX - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)  // of all windows, in a row
#define WITHIN_ROW (REUSE && ROW_UNIT % PX == 0 && SPAN <= 2 * PX + 4)
#define IN_MEMORY (REUSE && FOLLOWS && PLANE_UNIT % PX == 0 && SPAN <= 2 * PX + 4)
uniform highp X_SAMPLER x;
uniform highp WEIGHT_SAMPLER weight;
#include <epilogue>
uniform int n, c, h, w, o, oh, ow, kernel_h, kernel_w;
out highp vec4 result[PX];

ivec2 corner(int pixel) {
    return ivec2(pixel % ow * STRIDE_W - PADDING_LEFT, pixel / ow * STRIDE_H - PADDING_TOP);
}

// The texel of the input at column and row `at` of the plane at `start`; 0 outside of the image.
vec4 x_or_zero(int start, ivec2 at) {
#if PADDED
    bool inside = uint(at.y) < uint(h) && uint(at.x) < uint(w);
    vec4 value = texel(x, inside ? start + at.y * w + at.x : 0);
    return inside ? value : vec4(0.0);
#else
    return texel(x, start + at.y * w + at.x);
#endif
}

// Computes `count` pixels of one plane of the result to result[to] and the following.
void convolve(int plane, int pixel, const int to, const int count) {
    int quads = (o + 3) / 4, groups = (c + 3) / 4;
    int image = plane / quads;
    int quad = plane - image * quads;
    ivec2 corners[PX];
    vec4 sum[PX];
    for (int i = 0; i < count; ++i) {
        corners[i] = corner(pixel + i);
        sum[i] = vec4(0.0);
    }
    int tap = quad * groups * (KERNEL_H * KERNEL_W * 4);
    for (int group = 0; group < groups; ++group) {
        int start = (image * groups + group) * h * w;
        for (int ky = 0; ky < kernel_h; ++ky) {
            int down = ky * DILATION_H;
#if WITHIN_ROW
            vec4 row[SPAN];
            for (int j = 0; j < SPAN; ++j) row[j] = x_or_zero(start, corners[0] + ivec2(j, down));
#elif IN_MEMORY
            vec4 row[SPAN];
            int first = start + (corners[0].y + down) * w + corners[0].x;
            int last = n * groups * h * w - 1;
            for (int j = 0; j < SPAN; ++j) row[j] = texel(x, clamp(first + j, 0, last));
#endif
#if WITHIN_ROW || IN_MEMORY
            for (int kx = 0; kx < KERNEL_W; ++kx, tap += 4) {
#else
            for (int kx = 0; kx < kernel_w; ++kx, tap += 4) {
#endif
                int across = kx * DILATION_W;
                vec4 w0 = texel(weight, tap), w1 = texel(weight, tap + 1);
                vec4 w2 = texel(weight, tap + 2), w3 = texel(weight, tap + 3);
                for (int i = 0; i < count; ++i) {
#if WITHIN_ROW
                    vec4 a = row[i * STRIDE_W + across];
#elif IN_MEMORY
                    ivec2 at = corners[i] + ivec2(across, down);
                    bool inside = uint(at.y) < uint(h) && uint(at.x) < uint(w);
                    vec4 a = inside ? row[i + across] : vec4(0.0);
#else
                    vec4 a = x_or_zero(start, corners[i] + ivec2(across, down));
#endif
                    sum[i] += a.x * w0 + a.y * w1 + a.z * w2 + a.w * w3;
                }
            }
        }
    }
    for (int i = 0; i < count; ++i) {
        int at = plane * oh * ow + pixel + i;
        // Components past the last channel are 0: the next layer multiplies them by zero weights.
        result[to + i] = first_of(epilogue(sum[i], at, quad), o - quad * 4);
    }
}

void main() {
    int pixels = oh * ow;
#if PLANE_UNIT % PX == 0
    int plane = gl_VertexID / (pixels / PX);
    convolve(plane, gl_VertexID * PX - plane * pixels, 0, PX);
#else
    // The pixels may be of two planes; past the last plane there is only padding.
    int last = n * ((o + 3) / 4) - 1;
    for (int i = 0; i < PX; ++i) {
        int at = gl_VertexID * PX + i;
        convolve(min(at / pixels, last), at % pixels, i, 1);
    }
#endif
}
