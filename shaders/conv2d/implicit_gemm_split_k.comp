#version 310 es
// Implicit GEMM for few results and a long k: a workgroup computes TM pixels by 4 WG_X TN output channels;
// each of its WG_K slices sums a part of k straight from memory, and the partial sums are added in shared
// memory. k runs over the taps, and over quads of channels within each tap.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_K
#define WG_K 16
#endif
#ifndef TM
#define TM 4
#endif
#ifndef TN
#define TN 1
#endif
#ifndef UNROLL
#define UNROLL 1
#endif
#ifndef RAGGED
#define RAGGED 1
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "conv2d/groups.glsl"
#include "conv2d/nhwc.glsl"
// The slices of 32 neighbouring invocations take the quads of a run in turn: so they read adjacent quads of
// x, and a slice seldom changes to another tap.
#define INTERLEAVED (32 / WG_X)
#define RESULTS (WG_X * TM * TN)
layout(local_size_x = WG_X, local_size_y = 1, local_size_z = WG_K) in;
shared vec4 part[WG_K * RESULTS];

int channels, depth;       // of a group: numbers and quads
int group, column, share;  // the first quad of output channels, of `share` in the group
ivec3 corners[TM];
vec4 sum[TM * TN];

// Adds quads `first`, `first` + INTERLEAVED, ... below `end` of a tap's channels. offset: of the pixel at the
// tap of each window, -1 outside of the image. UNROLL quads at a time are loaded before any is multiplied.
void accumulate_tap(int tap, int offset[TM], int first, int end) {
    int columns = share * GROUPS;
    for (int start = first; start < end; start += UNROLL * INTERLEAVED) {
        vec4 a[UNROLL * TM];
        vec4 b[UNROLL * 4 * TN];
        for (int u = 0; u < UNROLL; ++u) {
            int quad = min(start + u * INTERLEAVED, end - 1);
            for (int i = 0; i < TM; ++i)
                a[u * TM + i] = X_AT(max(offset[i], 0) + group * depth + quad);
            for (int l = 0; l < 4; ++l) {
                int channel = 4 * quad + l;
                bool past_end = RAGGED == 1 && channel >= channels;
                int row = (tap * channels + (past_end ? channels - 1 : channel)) * columns;
                for (int j = 0; j < TN; ++j) {
                    vec4 weights = WEIGHT(row + group * share + min(column + j * WG_X, share - 1));
                    b[(u * 4 + l) * TN + j] = past_end ? vec4(0.0) : weights;  // not 0 times infinity
                }
            }
        }
        for (int u = 0; u < UNROLL; ++u) {
            int quad = start + u * INTERLEAVED;
            if (u > 0 && quad >= end) continue;
            for (int i = 0; i < TM; ++i) {
                vec4 value = prologue(a[u * TM + i], group * depth + quad, corners[i].z);
                value = offset[i] >= 0 ? value : vec4(0.0);
#if RAGGED
                value = first_of(value, channels - 4 * quad);  // the padding may hold anything
#endif
                for (int l = 0; l < 4; ++l)
                    for (int j = 0; j < TN; ++j)
                        sum[i * TN + j] += value[l] * b[(u * 4 + l) * TN + j];
            }
        }
    }
}

// Adds up this slice's quads of its run of k.
void accumulate_slice(int slice) {
    int quads = KERNEL_H * KERNEL_W * depth;
    int run = (quads + WG_K - 1) / WG_K * INTERLEAVED;
    int step = slice / INTERLEAVED * run;
    int end = min(step + run, quads);
    step += slice % INTERLEAVED;
    while (step < end) {
        int tap = step / depth;
        int first = step - tap * depth;
        int offset[TM];
        for (int i = 0; i < TM; ++i) offset[i] = pixel_at_tap(corners[i], tap / KERNEL_W, tap % KERNEL_W);
        int tap_end = min(end - tap * depth, depth);
        accumulate_tap(tap, offset, first, tap_end);
        step += (tap_end - first + INTERLEAVED - 1) / INTERLEAVED * INTERLEAVED;
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int slice = int(gl_LocalInvocationID.z);
    int tile_column = int(WORKGROUP_ID.x) * WG_X * TN;
    int pixel = int(WORKGROUP_ID.y) * TM;
    group = int(WORKGROUP_ID.z);
    channels = c / GROUPS;
    depth = (channels + 3) / 4;
    share = (o + 3) / 4 / GROUPS;
    column = tile_column + lane;
    corners[0] = corner(min(pixel, n * oh * ow - 1));
    for (int i = 1; i < TM; ++i) corners[i] = next_corner(corners[i - 1]);
    for (int i = 0; i < TM * TN; ++i) sum[i] = vec4(0.0);
    accumulate_slice(slice);
    // Rotated: other registers for the sums, see common/tile.glsl.
    for (int i = 0; i < TM * TN; ++i) part[slice * RESULTS + i * WG_X + lane] = sum[i].yzwx;
    workgroup_barrier();

    // Each invocation adds and finishes some of the workgroup's results.
    for (int item = slice * WG_X + lane; item < RESULTS; item += WG_X * WG_K) {
        vec4 total = part[item];
        for (int s = 1; s < WG_K; ++s) total += part[s * RESULTS + item];
        int row = pixel + item / (WG_X * TN), quad = tile_column + item % (WG_X * TN);
        if (row < n * oh * ow && quad < share) finish(total.wxyz, row, group * share + quad);
    }
}
