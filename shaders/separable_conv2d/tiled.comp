#version 310 es
// A depthwise convolution and the pointwise one behind it: a workgroup computes WG_Y TM pixels by
// 4 WG_X output channels. It makes the depthwise results of its pixels in shared memory, those of
// QUADS quads of channels at a time; its WG_K slices each sum the products of a part of these, and
// shared memory joins the parts.
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
#include "conv2d/nhwc.glsl"
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
#define PIXELS (WG_Y * TM)
#define QUADS (DEEP * WG_X * WG_K)
shared vec4 held[PIXELS * QUADS];  // depthwise results, a pixel's after another's; then parts

void wait() {
    memoryBarrierShared();
    barrier();
}

// Puts the depthwise results of the `count` quads of channels from `base` on into shared memory.
// Each invocation makes those of PX pixels at a time. What is behind the last channel is 0.
void convolve(int base, int count) {
    int channels = (c + 3) / 4, last = n * oh * ow - 1;
    int items = (PIXELS + PX - 1) / PX * count;
    for (int item = int(gl_LocalInvocationIndex); item < items; item += INVOCATIONS) {
        int place = item / count * PX;
        int quad = base + item % count;
        ivec3 from[PX];
        vec4 sum[PX];
        for (int p = 0; p < PX; ++p) {
            from[p] = corner(min(int(WORKGROUP_ID.y) * PIXELS + place + p, last));
            sum[p] = vec4(0.0);
        }
        for (int ky = 0; ky < KERNEL_H; ++ky) {
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                vec4 taps = DEPTHWISE((ky * KERNEL_W + kx) * channels + quad);
                for (int p = 0; p < PX; ++p) {
                    int at = meets(from[p], ky, kx);
                    vec4 met = x_at(max(at, 0) + quad);
                    sum[p] += at < 0 ? vec4(0.0) : met * taps;
                }
            }
        }
        for (int p = 0; p < PX; ++p) {
            vec4 made = first_of(prologue(sum[p], quad, from[p].z), c - 4 * quad);
            if (PIXELS % PX == 0 || place + p < PIXELS)
                held[(place + p) * QUADS + quad - base] = made;
        }
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
    for (int base = 0; base < channels; base += QUADS) {
        int count = min(channels - base, QUADS);
        if (base > 0) wait();
        convolve(base, count);
        wait();
        for (int first = slice; first < count; first += AHEAD * WG_K) {
            vec4 weights[4 * AHEAD];  // all are on their way before one is waited for
            for (int l = 0; l < 4 * AHEAD; ++l) {
                int channel = 4 * (base + first + l / 4 * WG_K) + l % 4;
                weights[l] = WEIGHT(min(channel, c - 1) * columns + column);
            }
            for (int step = 0; step < AHEAD; ++step) {
                int quad = first + step * WG_K;
                if (AHEAD > 1 && quad >= count) break;
                for (int i = 0; i < TM; ++i) {
                    vec4 a = held[(row + i) * QUADS + quad];
                    for (int l = 0; l < 4; ++l) sum[i] += a[l] * weights[4 * step + l];
                }
            }
        }
    }

    // The sums of the slices, then those of all.
#define PART(slice, i) held[((slice) * PIXELS + row + (i)) * WG_X + lane]
    wait();
    for (int i = 0; i < TM; ++i) PART(slice, i) = sum[i];
    for (int width = WG_K / 2; width > 0; width /= 2) {
        wait();
        if (slice < width)
            for (int i = 0; i < TM; ++i) PART(slice, i) += PART(slice + width, i);
    }
    wait();
    int first = int(WORKGROUP_ID.y) * PIXELS + row;
    for (int i = slice; i < TM; i += WG_K)
        if (first + i < n * oh * ow && int(INVOCATION_ID.x) < columns)
            finish(PART(0, i), first + i, column);
}
