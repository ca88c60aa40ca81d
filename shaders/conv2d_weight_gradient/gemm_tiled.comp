#version 310 es
// A convolution's gradient by its weight, channels last, as a product through shared memory: a
// workgroup computes a tile of WG_Y TM output channels by WG_X TN columns, and steps along the pixels of
// dy by BK. A column is four input channels at a tap; all taps of four channels follow one another, as
// in the result, so that neighbours in a tile store neighbouring numbers. See common/tile.glsl and
// matmul/gemm_tiled.comp.
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
#define A_BY_ROWS 1
#define EPILOGUE_LONG 0  // there is none
#include "common/launch.glsl"
#include "common/tile.glsl"
#include "common/window.glsl"
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Dy { vec4 dy[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
uniform int n, c, h, w, o, oh, ow, chunk;
#ifndef TAPS
#define TAPS (KERNEL_H * KERNEL_W)
#endif

// For each pixel of four steps: its offset in dy, in vec4; the row and the column of x where its window
// begins; and the rows of x before its image.
shared ivec4 pixels[4 * BK];

int first, depth;         // of the part: the first pixel, counted through all images, and the count
int loaded_depth;         // the first depth of the step that was loaded
ivec2 b_shifts[B_LOADS];  // of each load of x: from the corner of a window to the tap
int b_quads[B_LOADS];     // of each load of x: the quad of channels

int columns() {  // in vec4
    return (c + 3) / 4 * TAPS;
}

// Computes what is the same in all steps.
void locate_loads() {
    int part = int(WORKGROUP_ID.z), rows = n * oh;
    int row = min(part * chunk, rows);
    first = row * ow;
    depth = (min(row + chunk, rows) - row) * ow;
    for (int i = 0; i < B_LOADS; ++i) {
        int at = min(tile_column + b_position(i * INVOCATIONS + lane).y, columns() - 1);
        int tap = at % TAPS;
        b_shifts[i] = ivec2(tap / KERNEL_W * DILATION_H, tap % KERNEL_W * DILATION_W);
        b_quads[i] = at / TAPS;
    }
}

// Locates the pixels of a step; those past the last one repeat it.
void find_pixels(int step) {
    for (int i = lane; i < BK; i += INVOCATIONS) {
        int pixel = first + min(step * BK + i, depth - 1);
        int row = pixel / ow, image = row / oh;
        pixels[step % 4 * BK + i] =
            ivec4(pixel * ((o + 3) / 4), (row - image * oh) * STRIDE_H - PADDING_TOP,
                  (pixel - row * ow) * STRIDE_W - PADDING_LEFT, image * h);
    }
}

// Loads the operands of a step. Its pixels were located two calls ago, before a barrier.
void load_step(int step) {
    int from = step % 4 * BK;
    loaded_depth = step * BK;
    for (int i = 0; i < A_LOADS; ++i) {
        ivec2 item = a_position(i * INVOCATIONS + lane);
        a_next[i] = dy[pixels[from + item.x].x + min(tile_row / 4 + item.y, (o - 1) / 4)];
    }
    for (int i = 0; i < B_LOADS; ++i) {
        ivec4 pixel = pixels[from + b_position(i * INVOCATIONS + lane).x];
        ivec2 at = pixel.yz + b_shifts[i];
        bool inside = uint(at.x) < uint(h) && uint(at.y) < uint(w);
        // Unconditional: a load that depends on a condition is waited for before the next is issued.
        int place = inside ? (pixel.w + at.x) * w + at.y : 0;
        vec4 value = x[place * ((c + 3) / 4) + b_quads[i]];
        b_next[i] = inside ? value : vec4(0.0);
    }
    find_pixels(step + 2);
}

void store_step(int buffer_index) {
    if (loaded_depth + BK > depth) {  // of both operands, as 0 times infinity is NaN
        for (int i = 0; i < A_LOADS; ++i)
            if (loaded_depth + a_position(i * INVOCATIONS + lane).x >= depth) a_next[i] = vec4(0.0);
        for (int i = 0; i < B_LOADS; ++i)
            if (loaded_depth + b_position(i * INVOCATIONS + lane).x >= depth) b_next[i] = vec4(0.0);
    }
    store_tiles(buffer_index);
}

void finish_quad(int row_in_tile, int quad_in_tile, vec4 sums) {
    int channel = tile_row + row_in_tile, at = tile_column + quad_in_tile;
    if (channel >= o || at >= columns()) return;
    int quad = at / TAPS;
    int place = ((int(WORKGROUP_ID.z) * o + channel) * c + quad * 4) * TAPS + at % TAPS;
    for (int i = 0; i < min(4, c - quad * 4); ++i) result[place + i * TAPS] = sums[i];
}

void main() {
    locate_tile();
    locate_loads();
    if (depth > 0) {
        find_pixels(0);
        find_pixels(1);
        workgroup_barrier();
        int steps = (depth + BK - 1) / BK;
        // Groups of rows or columns that lie outside of the result are not multiplied.
        if (GM > 1 && o - tile_row <= 4 * WG_Y)
            multiply_steps(steps, 1, GN);
        else if (GN > 1 && columns() - tile_column <= WG_X)
            multiply_steps(steps, GM, 1);
        else
            multiply_steps(steps, GM, GN);
    }
    add_slices();
#if FINISH_SHARED
    finish_shared_sums();
#else
    for (int g = 0; g < GM; ++g)
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < GN; ++j)
                finish_quad((g * WG_Y + row) * 4 + i, j * WG_X + column, sum[(g * 4 + i) * GN + j]);
#endif
}
