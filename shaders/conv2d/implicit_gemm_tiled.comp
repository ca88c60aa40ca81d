#version 310 es
// Implicit GEMM through shared memory: a workgroup computes a tile of WG_Y TM pixels by WG_X TN
// output channels and steps along taps and channels by BK. The rows of the patch matrix
// are gathered on their way into shared memory. See common/tile.glsl and matmul/gemm_tiled.comp.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef TM
#define TM 4
#endif
#ifndef TN
#define TN 4
#endif
#ifndef BK
#define BK 8
#endif
#ifndef SLICES
#define SLICES 1
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#include "common/launch.glsl"
#include "conv2d/groups.glsl"
#include "conv2d/nhwc.glsl"
#include "common/tile.glsl"

int channel = 0, tap_y = 0, tap_x = 0;  // of the step to load
int loaded_channel;  // the first channel of the step that was loaded
int channels, group, pixels, share;  // share: a group's columns in vec4
ivec3 corners[A_LOADS];
int valid[A_LOADS];  // how many channels of each load are inside: none outside of the image

// Loads the operands of a step, which is always the next one. `mask` clears later what lies outside: a
// condition here would make each load be waited for.
void load_step(int step) {
    loaded_channel = channel;
    for (int i = 0; i < A_LOADS; ++i) {
        int offset = pixel_at_tap(corners[i], tap_y, tap_x);
        int depth = channel + (i * INVOCATIONS + lane) % (BK / 4) * 4;
        valid[i] = offset < 0 ? 0 : channels - depth;
        a_next[i] = X_AT(valid[i] > 0 ? offset + (group * channels + depth) / 4 : 0);
    }
    int columns = (o + 3) / 4;
    int tap = (tap_y * KERNEL_W + tap_x) * channels;
    for (int i = 0; i < B_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        int depth = tap + min(channel + item / (BN / 4), channels - 1);
        int quad = group * share + min(tile_column + item % (BN / 4), share - 1);
        b_next[i] = WEIGHT(min(depth, KERNEL_H * KERNEL_W * channels - 1) * columns + quad);
    }
    channel += BK;
    if (channel >= channels) {
        channel = 0;
        if (++tap_x == KERNEL_W) {
            tap_x = 0;
            ++tap_y;
        }
    }
}

void mask() {
    for (int i = 0; i < A_LOADS; ++i) {
        int depth = min(loaded_channel + (i * INVOCATIONS + lane) % (BK / 4) * 4, channels - 1);
        a_next[i] = prologue(a_next[i], (group * channels + depth) / 4, corners[i].z);
        a_next[i] = first_of(a_next[i], valid[i]);
    }
    if (loaded_channel + BK <= channels) return;
    for (int i = 0; i < B_LOADS; ++i)  // 0 times an infinite weight would be NaN
        if (loaded_channel + (i * INVOCATIONS + lane) / (BN / 4) >= channels) b_next[i] = vec4(0.0);
}

void store_step(int buffer_index) {
    mask();
    store_tiles(buffer_index);
}

#if FINISH_SHARED
void finish_quad(int row_in_tile, int quad_in_tile, vec4 sums) {
    int pixel = tile_row + row_in_tile, quad = tile_column + quad_in_tile;
    if (pixel < pixels && quad < share) finish(sums, pixel, group * share + quad);
}
#endif

void main() {
    locate_tile();
    group = int(WORKGROUP_ID.z);
    channels = c / GROUPS;
    pixels = n * oh * ow;
    share = (o + 3) / 4 / GROUPS;
    for (int i = 0; i < A_LOADS; ++i)
        corners[i] = corner(min(tile_row + (i * INVOCATIONS + lane) / (BK / 4), pixels - 1));

    // Groups of rows or columns that lie outside of the result are not multiplied.
    int steps = KERNEL_H * KERNEL_W * ((channels + BK - 1) / BK);
    if (GM > 1 && pixels - tile_row <= 4 * WG_Y)
        multiply_steps(steps, 1, GN);
    else if (GN > 1 && share - tile_column <= WG_X)
        multiply_steps(steps, GM, 1);
    else
        multiply_steps(steps, GM, GN);
    add_slices();
#if FINISH_SHARED
    finish_shared_sums();
#else
    for (int g = 0; g < GM; ++g) {
        for (int i = 0; i < 4; ++i) {
            int pixel = tile_row + (g * WG_Y + row) * 4 + i;
            for (int j = 0; j < GN; ++j) {
                int quad = tile_column + j * WG_X + column;
                if (pixel < pixels && quad < share)
                    finish(sum[(g * 4 + i) * GN + j], pixel, group * share + quad);
            }
        }
    }
#endif
}
