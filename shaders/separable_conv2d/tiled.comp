#version 310 es
// A depthwise convolution fused with the pointwise one behind it. A workgroup computes WG_Y tiles of
// TM pixels of a row by 4 WG_X output channels. It computes the depthwise results of its pixels into
// shared memory, QUADS quads of channels at a time; each of its WG_K slices sums the products of a part
// of these, and shared memory reduces the slices' sums.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 1
#endif
#ifndef WG_K
#define WG_K 16
#endif
#ifndef TM
#define TM 4
#endif
#ifndef PX
#define PX 1
#endif
#ifndef DEEP
#define DEEP 1
#endif
#ifndef AHEAD
#define AHEAD 1
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "conv2d/nhwc.glsl"
#include "conv2d/line.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_K) in;
#ifndef DEPTHWISE_HALF
#define DEPTHWISE_HALF 0
#endif
#if DEPTHWISE_HALF
layout(std430, binding = 3) buffer Depthwise { uvec2 depthwise[]; };
#define DEPTHWISE(i) four_halves(depthwise[i])
#else
layout(std430, binding = 3) buffer Depthwise { vec4 depthwise[]; };
#define DEPTHWISE(i) depthwise[i]
#endif
#define INVOCATIONS (WG_X * WG_Y * WG_K)
#define QUADS (DEEP * WG_X * WG_K)
// Pixels whose depthwise results an invocation computes at a time: several where their windows share
// most columns.
#define SPAN (STRIDE_W > 1 ? 1 : PX < TM ? PX : TM)
shared vec4 depthwise_results[WG_Y * TM * QUADS];  // by pixel; at the end the slices' sums
vec4 weights[4 * AHEAD];

// The first pixel of a tile in its row, and the row, counted through all images.
ivec2 tile_at(int tile) {
    int across = (ow + TM - 1) / TM, row = tile / across;
    return ivec2((tile - row * across) * TM, row);
}

// Load the weights of AHEAD steps of this slice, from the quad of channels `first` on. Weights behind
// the last channel are 0: they are multiplied by zeros, which would make NaN of infinity.
void fetch(int first, int column) {
    for (int l = 0; l < 4 * AHEAD; ++l) {
        int channel = 4 * (first + l / 4 * WG_K) + l % 4;
        weights[l] = WEIGHT(min(channel, c - 1) * ((o + 3) / 4) + column);
    }
    if (c % 4 == 0) return;
    for (int l = 0; l < 4 * AHEAD; ++l)
        if (4 * (first + l / 4 * WG_K) + l % 4 >= c) weights[l] = vec4(0.0);
}

// Compute the depthwise results of `count` quads of channels from `base` on into shared memory, zeros
// behind the last channel.
void convolve(int base, int count) {
    const int spans = (TM + SPAN - 1) / SPAN;
    int tiles = n * oh * ((ow + TM - 1) / TM);
    for (int item = int(gl_LocalInvocationIndex); item < WG_Y * spans * count; item += INVOCATIONS) {
        int span = item / count, quad = base + item % count;
        int pixel_of_group = span / spans * TM + span % spans * SPAN;
        ivec2 at = tile_at(min(int(WORKGROUP_ID.y) * WG_Y + span / spans, tiles - 1));
        int image = at.y / oh;
        ivec3 from = ivec3((at.x + span % spans * SPAN) * STRIDE_W - PADDING_LEFT,
                           (at.y - image * oh) * STRIDE_H - PADDING_TOP, image);
        vec4 sum[SPAN];
        for (int p = 0; p < SPAN; ++p) sum[p] = vec4(0.0);
        for (int ky = 0; ky < KERNEL_H; ++ky) {
            vec4 line[LINE_COLUMNS(SPAN)];
            for (int p = 0; p < SPAN; ++p) {
                for (int kx = 0; kx < KERNEL_W; ++kx) {
                    if (IS_FIRST_USE(p, kx)) {
                        int pixel = pixel_at_tap(from + ivec3(p * STRIDE_W, 0, 0), ky, kx);
                        vec4 value = x_at(max(pixel, 0) + quad);
                        line[LINE_INDEX(p, kx)] = pixel < 0 ? vec4(0.0) : value;
                    }
                }
            }
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                vec4 taps = DEPTHWISE((ky * KERNEL_W + kx) * ((c + 3) / 4) + quad);
                for (int p = 0; p < SPAN; ++p) sum[p] += line[LINE_INDEX(p, kx)] * taps;
            }
        }
        for (int p = 0; p < SPAN; ++p)
            if (TM % SPAN == 0 || span % spans * SPAN + p < TM)
                depthwise_results[(pixel_of_group + p) * QUADS + quad - base] =
                    first_of(prologue(sum[p], quad, image), c - 4 * quad);
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int row = int(gl_LocalInvocationID.y) * TM;
    int slice = int(gl_LocalInvocationID.z);
    int channels = (c + 3) / 4, columns = (o + 3) / 4;
    int column = min(int(INVOCATION_ID.x), columns - 1);
    vec4 sum[TM];
    for (int i = 0; i < TM; ++i) sum[i] = vec4(0.0);
    int first = slice;
    fetch(first, column);  // in flight while the depthwise results are computed
    for (int base = 0; base < channels; base += QUADS) {
        int end = min(base + QUADS, channels);
        if (base > 0) workgroup_barrier();
        convolve(base, end - base);
        workgroup_barrier();
        while (first < end) {
            for (int step = 0; step < AHEAD; ++step) {
                int quad = first + step * WG_K;
                if (quad < end) {
                    for (int i = 0; i < TM; ++i) {
                        vec4 a = depthwise_results[(row + i) * QUADS + quad - base];
                        for (int l = 0; l < 4; ++l) sum[i] += a[l] * weights[4 * step + l];
                    }
                }
            }
            first += AHEAD * WG_K;
            fetch(first, column);
        }
    }

    // Reduce the sums of the slices.
#define PART(slice, i) depthwise_results[((slice) * WG_Y * TM + row + (i)) * WG_X + lane]
    workgroup_barrier();
    for (int i = 0; i < TM; ++i) PART(slice, i) = sum[i];
    for (int width = WG_K / 2; width > 0; width /= 2) {
        workgroup_barrier();
        if (slice < width)
            for (int i = 0; i < TM; ++i) PART(slice, i) += PART(slice + width, i);
    }
    workgroup_barrier();
    ivec2 at = tile_at(int(INVOCATION_ID.y));
    if (at.y >= n * oh || int(INVOCATION_ID.x) >= columns) return;
    for (int i = slice; i < TM; i += WG_K)
        if (at.x + i < ow) finish(PART(0, i), at.y * ow + at.x + i, column);
}
