#version 310 es
// Maximum or average over a window, channels last: an invocation slides down PX columns of ROWS rows of
// four channels. Each row of x is reduced once for each of the PX windows, and then joined to the results of
// all rows whose windows it is in. Columns outside are clamped to the nearest one inside, which is in a
// maximum's window anyway. NVIDIA's compiler does not unroll loops of so much code, and keeps arrays that such
// loops index in memory: so macros write out the work for each column.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef PX
#define PX 1
#endif
#ifndef ROWS
#define ROWS 5
#endif
// The next row of x is loaded before the last is joined.
#ifndef AHEAD
#define AHEAD 0
#endif
#include "common/launch.glsl"
#include "pool2d/windows.glsl"
layout(local_size_x = WG_X) in;
#include "common/fours.glsl"
layout(std430, binding = 0) buffer X { X_FOUR x[]; };
layout(std430, binding = 1) buffer Out { OUT_FOUR result[]; };
uniform int n, c, h, w, oh, ow;
uniform int x_first, x_pixel, out_first, out_pixel;  // floats, multiples of 4
#if PX > 4 || KERNEL_H > 5 || KERNEL_W > 5
#error PX must be 4 at most, and windows 5 x 5
#endif
#define COLUMNS (PX - 1 + KERNEL_W)

#define EACH_OF_4(call) call(0) call(1) call(2) call(3)
#define EACH_OF_8(call) EACH_OF_4(call) call(4) call(5) call(6) call(7)

// value[4 * i + 4 + p] is the value of pixel p in the i-th row above the newest row; the first four are NONE.
vec4 loaded[8], line[8], joined_row[4], value[24], sum;  // sum: of all numbers read
int offset[8];  // of each column in a row of x
int image, quad, column, left, row;  // row: of x, the next one

#if MODE == 0
#define NONE vec4(LEAST)
#define JOINED(a, b) max(a, b)
#define TAKE(i) if (i < COLUMNS) { line[i] = loaded[i]; sum += loaded[i]; }
#else
#define NONE vec4(0.0)
#define JOINED(a, b) ((a) + (b))
#define TAKE(i) if (i < COLUMNS) line[i] = uint(left + i) < uint(w) ? loaded[i] : vec4(0.0);
#endif
#define LOAD(i) \
    if (i < COLUMNS) loaded[i] = X_AT(start + offset[i]);
#define PLACE(i) \
    if (i < COLUMNS) offset[i] = clamp(left + i, 0, w - 1) * (x_pixel / 4) + x_first / 4 + quad;
#define NEXT(p, i) \
    if (i < KERNEL_W) joined_row[p] = JOINED(joined_row[p], line[p + i]);
#define PIXEL(p) \
    if (p < PX) { \
        joined_row[p] = line[p]; \
        NEXT(p, 1) NEXT(p, 2) NEXT(p, 3) NEXT(p, 4) \
    }

void load() {
    int start = (image * h + clamp(row, 0, h - 1)) * w * (x_pixel / 4);
    EACH_OF_8(LOAD)
}

// Reduces the next row of x for each pixel. Returns whether the row is inside.
bool next_row() {
#if !AHEAD
    load();
#endif
    EACH_OF_8(TAKE)
    bool inside = row >= 0 && row < h;
    ++row;
#if AHEAD
    load();
#endif
    EACH_OF_4(PIXEL)
    return inside;
}

// Results move up by a row as a row is joined to them, the oldest row first.
#define CLEAR(i) value[4 * i] = value[4 * i + 1] = value[4 * i + 2] = value[4 * i + 3] = NONE;
#define MOVE(p, i) if (p < PX) value[4 * i + 4 + p] = value[4 * i + p];
#define MOVE_ON(p, i) if (p < PX) value[4 * i + 4 + p] = JOINED(value[4 * i + p], joined_row[p]);
#define EACH_PIXEL(call, i) call(0, i) call(1, i) call(2, i) call(3, i)
#define NO_ROW(i) if (i < KERNEL_H) { EACH_PIXEL(MOVE, i) }
#define ROW(i) if (i < KERNEL_H) { EACH_PIXEL(MOVE_ON, i) }
#define OLDEST_FIRST(call) call(4) call(3) call(2) call(1) call(0)
#define FINISH(p) if (p < PX && column + p < ow) finish(value[4 * KERNEL_H + p], y, column + p);

#if MODE == 0
// The maximum over a window by single numbers, NaN if any is: for windows in which a number is not finite.
vec4 maximum(int top, int left) {
    vec4 greatest = vec4(IDENTITY);
    for (int y = max(top, 0); y < min(top + KERNEL_H, h); ++y)
        for (int x_column = max(left, 0); x_column < min(left + KERNEL_W, w); ++x_column)
            greatest = greater(
                greatest, X_AT(((image * h + y) * w + x_column) * (x_pixel / 4) + x_first / 4 + quad));
    return greatest;
}
#endif

// Stores the value of the window of a pixel.
void finish(vec4 total, int y, int out_column) {
    int top = y - PADDING_TOP, left = out_column - PADDING_LEFT;
#if MODE == 0
    if (!is_finite((sum.x + sum.y) + (sum.z + sum.w))) total = maximum(top, left);
#else
    total /= places(top, left, KERNEL_H, KERNEL_W, h, w);
#endif
    result[((image * oh + y) * ow + out_column) * (out_pixel / 4) + out_first / 4 + quad] = STORED(total);
}

// Computes PX pixels from `column` on of rows `first` to `last` - 1.
void pool(int first, int last) {
    EACH_OF_4(CLEAR) CLEAR(4) CLEAR(5)
    sum = vec4(0.0);
    // Rows of padding above the first row of x are skipped.
    int begin = clamp(PADDING_TOP, first, first + KERNEL_H - 1);
    row = begin - PADDING_TOP;
#if AHEAD
    load();
#endif
    for (int y = begin - (KERNEL_H - 1); y < last; ++y) {
        if (next_row()) {
            OLDEST_FIRST(ROW)
        } else {
            OLDEST_FIRST(NO_ROW)
        }
        if (y >= first) { EACH_OF_4(FINISH) }
    }
}

void main() {
    int quads = (c + 3) / 4, group = int(INVOCATION_ID.x) / quads;
    quad = int(INVOCATION_ID.x) - group * quads;
    column = group * PX;
    if (column >= ow) return;
    left = column - PADDING_LEFT;
    EACH_OF_8(PLACE)
    int strips = (oh + ROWS - 1) / ROWS;
    for (int strip = int(WORKGROUP_ID.y); strip < n * strips; strip += int(WORKGROUP_COUNT.y)) {
        image = strip / strips;
        int first = (strip - image * strips) * ROWS;
        pool(first, min(first + ROWS, oh));
    }
}
