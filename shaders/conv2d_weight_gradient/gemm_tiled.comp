#version 310 es
// A convolution's gradient by its weight, channels last, as a product through shared memory: a
// workgroup computes a tile of WG_Y TM output channels by WG_X TN columns, and walks along the pixels
// of the result's gradient in steps of BK. Columns are fours of input channels at a tap, all taps of
// four channels one after the other, as they lie in the result: neighbours in a tile then store
// neighbouring numbers. See common/tile.glsl and matmul/gemm_tiled.comp.
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

// Of the pixels of four steps: where they begin in dy, in vec4; the row and the column of x where
// their window begins; and how many rows of x lie before their image.
shared ivec4 pixels[4 * BK];

int first, depth;         // the first pixel of the part, among those of all images, and how many
int fetched;              // the first depth of the step that was fetched
ivec2 b_shifts[B_LOADS];  // of each load of x: from where a window begins to its tap
int b_quads[B_LOADS];     // and the four channels

int columns() {  // in vec4
    return (c + 3) / 4 * TAPS;
}

// Finds what stays the same in all steps.
void locate() {
    int part = int(WORKGROUP_ID.z), rows = n * oh;
    int row = min(part * chunk, rows);
    first = row * ow;
    depth = (min(row + chunk, rows) - row) * ow;
    for (int i = 0; i < B_LOADS; ++i) {
        int at = min(tile_column + b_item(i * INVOCATIONS + lane).y, columns() - 1);
        int tap = at % TAPS;
        b_shifts[i] = ivec2(tap / KERNEL_W * DILATION_H, tap % KERNEL_W * DILATION_W);
        b_quads[i] = at / TAPS;
    }
}

// Finds where the pixels of a step lie; of those behind the last, where the last does.
void find(int of_step) {
    for (int i = lane; i < BK; i += INVOCATIONS) {
        int pixel = first + min(of_step * BK + i, depth - 1);
        int row = pixel / ow, image = row / oh;
        pixels[of_step % 4 * BK + i] =
            ivec4(pixel * ((o + 3) / 4), (row - image * oh) * STRIDE_H - PADDING_TOP,
                  (pixel - row * ow) * STRIDE_W - PADDING_LEFT, image * h);
    }
}

// Loads the operands of a step. Its pixels were found two calls ago, before everyone waited.
void fetch(int of_step) {
    int from = of_step % 4 * BK;
    fetched = of_step * BK;
    for (int i = 0; i < A_LOADS; ++i) {
        ivec2 item = a_item(i * INVOCATIONS + lane);
        a_next[i] = dy[pixels[from + item.x].x + min(tile_row / 4 + item.y, (o - 1) / 4)];
    }
    for (int i = 0; i < B_LOADS; ++i) {
        ivec4 pixel = pixels[from + b_item(i * INVOCATIONS + lane).x];
        ivec2 at = pixel.yz + b_shifts[i];
        bool inside = uint(at.x) < uint(h) && uint(at.y) < uint(w);
        // Read in any case: loads that hang on a condition are waited for one by one.
        int place = inside ? (pixel.w + at.x) * w + at.y : 0;
        vec4 met = x[place * ((c + 3) / 4) + b_quads[i]];
        b_next[i] = inside ? met : vec4(0.0);
    }
    find(of_step + 2);
}

void put(int buffer_index) {
    if (fetched + BK > depth) {  // both, as 0 times infinity is NaN
        for (int i = 0; i < A_LOADS; ++i)
            if (fetched + a_item(i * INVOCATIONS + lane).x >= depth) a_next[i] = vec4(0.0);
        for (int i = 0; i < B_LOADS; ++i)
            if (fetched + b_item(i * INVOCATIONS + lane).x >= depth) b_next[i] = vec4(0.0);
    }
    store(buffer_index);
}

void finish_at(int of_row, int of_quad, vec4 sums) {
    int channel = tile_row + of_row, at = tile_column + of_quad;
    if (channel >= o || at >= columns()) return;
    int quad = at / TAPS;
    int place = ((int(WORKGROUP_ID.z) * o + channel) * c + quad * 4) * TAPS + at % TAPS;
    for (int i = 0; i < min(4, c - quad * 4); ++i) result[place + i * TAPS] = sums[i];
}

void main() {
    place();
    locate();
    if (depth > 0) {
        find(0);
        find(1);
        wait();
        int steps = (depth + BK - 1) / BK;
        // Tiles at the edges may have few rows or columns: the rest is not worth multiplying.
        if (GM > 1 && o - tile_row <= 4 * WG_Y)
            walk(steps, 1, GN);
        else if (GN > 1 && columns() - tile_column <= WG_X)
            walk(steps, GM, 1);
        else
            walk(steps, GM, GN);
    }
    add_slices();
#if TOGETHER
    finish_together();
#else
    for (int g = 0; g < GM; ++g)
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < GN; ++j)
                finish_at((g * WG_Y + row) * 4 + i, j * WG_X + column, sum[(g * 4 + i) * GN + j]);
#endif
}
