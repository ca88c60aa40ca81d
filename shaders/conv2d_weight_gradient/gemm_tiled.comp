#version 310 es
// A convolution's gradient by its weight, channels last, as a product through shared memory: a
// workgroup computes a tile of WG_Y TM output by WG_X TN input channels at one tap, and walks along
// the pixels of the result's gradient whose window has the tap on the image, in steps of BK. See
// common/tile.glsl and matmul/gemm_tiled.comp.
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

// Where the pixels of four steps begin, in dy and in x, in vec4. Computed once for all who load.
shared ivec2 pixels[4 * BK];

int part, tap;
ivec2 shift;        // from a pixel of dy, times the stride, to the one of x at the tap
ivec2 tap_first, tap_count;  // pixels of an image of dy whose windows have the tap on x, along x and y
int first, depth;   // the first pixel of the part, among those of all images, and how many
int fetched;        // the first depth of the step that was fetched

// The places of dy along an axis from which a tap meets places of x: the first, and how many.
ivec2 range(int shift, int stride, int size, int places) {
    int from = shift < 0 ? (-shift + stride - 1) / stride : 0;
    int behind = shift < size ? min(places, (size - 1 - shift) / stride + 1) : 0;
    return ivec2(from, max(behind - from, 0));
}

// The number of such rows of dy, of all images, before a row.
int tap_rows_before(int row) {
    int image = row / oh;
    return image * tap_count.y + clamp(row - image * oh - tap_first.y, 0, tap_count.y);
}

// Finds the pixels that this workgroup adds up.
void locate_pixels() {
    part = int(WORKGROUP_ID.z) / TAPS;
    tap = int(WORKGROUP_ID.z) - part * TAPS;
    shift = ivec2(tap % KERNEL_W * DILATION_W - PADDING_LEFT,
                  tap / KERNEL_W * DILATION_H - PADDING_TOP);
    ivec2 columns = range(shift.x, STRIDE_W, w, ow), rows = range(shift.y, STRIDE_H, h, oh);
    tap_first = ivec2(columns.x, rows.x);
    tap_count = ivec2(columns.y, rows.y);
    int all = n * oh, row = min(part * chunk, all);
    int before = tap_rows_before(row);
    first = before * tap_count.x;
    depth = (tap_rows_before(min(row + chunk, all)) - before) * tap_count.x;
}

// Finds where the pixels of a step lie; of those behind the last, where the last does.
void find(int of_step) {
    for (int i = lane; i < BK; i += INVOCATIONS) {
        int pixel = first + min(of_step * BK + i, depth - 1);
        int row = pixel / tap_count.x, image = row / tap_count.y;
        ivec2 at = tap_first + ivec2(pixel - row * tap_count.x, row - image * tap_count.y);
        ivec2 on_x = at * ivec2(STRIDE_W, STRIDE_H) + shift;
        pixels[of_step % 4 * BK + i] = ivec2(((image * oh + at.y) * ow + at.x) * ((o + 3) / 4),
                                             ((image * h + on_x.y) * w + on_x.x) * ((c + 3) / 4));
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
        ivec2 item = b_item(i * INVOCATIONS + lane);
        b_next[i] = x[pixels[from + item.x].y + min(tile_column + item.y, (c - 1) / 4)];
    }
    find(of_step + 2);
}

void put(int turn) {
    if (fetched + BK > depth) {  // both, as 0 times infinity is NaN
        for (int i = 0; i < A_LOADS; ++i)
            if (fetched + a_item(i * INVOCATIONS + lane).x >= depth) a_next[i] = vec4(0.0);
        for (int i = 0; i < B_LOADS; ++i)
            if (fetched + b_item(i * INVOCATIONS + lane).x >= depth) b_next[i] = vec4(0.0);
    }
    store(turn);
}

void finish_at(int of_row, int of_quad, vec4 sums) {
    int channel = tile_row + of_row, quad = tile_column + of_quad;
    if (channel >= o) return;
    int at = ((part * o + channel) * c + quad * 4) * TAPS + tap;
    for (int i = 0; i < min(4, c - quad * 4); ++i) result[at + i * TAPS] = sums[i];
}

void main() {
    place();
    locate_pixels();
    if (depth > 0) {
        find(0);
        find(1);
        wait();
        int steps = (depth + BK - 1) / BK;
        // Tiles at the edges may have few rows or columns: the rest is not worth multiplying.
        if (GM > 1 && o - tile_row <= 4 * WG_Y)
            walk(steps, 1, GN);
        else if (GN > 1 && (c + 3) / 4 - tile_column <= WG_X)
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
