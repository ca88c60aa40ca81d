#version 310 es
// A transposed matrix (Cheng's MatTrans, one-dimensional as his version 3 is): an invocation takes a
// row of what lies row by row, WIDTH numbers at a time, and writes each to the row of the result that
// is its column. His text names the kernel and its widths, 4, 8 and 16, and shows no code of it.
#ifndef WG_X
#define WG_X 16
#endif
#ifndef WIDTH
#define WIDTH 4
#endif
#include "common/launch.glsl"
#define QUADS (WIDTH / 4)
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int n, c;
uniform int x_rows, out_columns;  // padded to fours

void main() {
    int row = int(INVOCATION_ID.x);
    if (row >= out_columns) return;
    int quads = x_rows / 4;
    int start = min(row, c - 1) * quads;
    for (int step = 0; step < quads; step += QUADS) {
        vec4 v[QUADS];
        for (int i = 0; i < QUADS; ++i) v[i] = x[start + min(step + i, quads - 1)];
        for (int i = 0; i < QUADS; ++i)
            for (int lane = 0; lane < 4; ++lane) {
                int column = 4 * (step + i) + lane;
                if (column < n) result[column * out_columns + row] = row < c ? v[i][lane] : 0.0;
            }
    }
}
