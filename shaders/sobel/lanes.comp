#version 310 es
// Both gradients of 4 WIDTH pixels of ROWS rows an invocation. It walks down these rows and keeps the
// terms of the last rows in registers: only rows at the ends are loaded twice.
#ifndef WG_X
#define WG_X 32
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef WIDTH
#define WIDTH 4
#endif
#ifndef ROWS
#define ROWS 8
#endif
#ifndef UNROLLED
#define UNROLLED 0
#endif
#include "common/launch.glsl"
#include "sobel/lanes.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { CHARS x[]; };
layout(std430, binding = 1) buffer Out { CHARS result[]; };
uniform int height, width, words;

// The terms of row `y`, clamped to the image, of the words of `column`.
Row row_at(int y, int column, int columns) {
    int row = clamp(y, 0, height - 1) * columns;
    uint before = x[row + max(column - 1, 0)].LAST;
    uint after = x[row + min(column + 1, columns - 1)].x;
    return row_of(before, x[row + column], after);
}

void main() {
    int columns = words / WIDTH;
    int column = int(INVOCATION_ID.x), top = int(INVOCATION_ID.y) * ROWS;
    if (column >= columns || top >= height) return;
    CHARS mask = within(uint(column * WIDTH), uint(width));
    Row above = row_at(top - 1, column, columns), row = row_at(top, column, columns);
#if UNROLLED
    for (int i = 0; i < ROWS; ++i) {
        int y = top + i;
        if (y >= height) return;
#else  // boards have too few registers for an unrolled loop
    int end = min(top + ROWS, height);
    for (int y = top; y < end; ++y) {
#endif
        Row below = row_at(y + 1, column, columns);
        CHARS even = above.across_even + 2u * row.across_even + below.across_even;
        CHARS odd = above.across_odd + 2u * row.across_odd + below.across_odd;
        CHARS dx = bytes_of(even, odd);
        CHARS dy = bytes_of(above.along_even - below.along_even, above.along_odd - below.along_odd);
        CHARS inner = y > 0 && y < height - 1 ? mask : CHARS(0u);
        int at = y * columns + column;
        result[at] = dx & inner;
        result[height * columns + at] = dy & inner;
        above = row;
        row = below;
    }
}
