#version 310 es
// 2 x 2 results an invocation, four dots a step along k (Rovder 2017, appendix 12.3, invocation id 0
// being two of his rows, neurons; Gronqvist's blockedNT, listing 1.12). ROWS_FIRST tells that id 0 is
// two rows of the result, as in listing 1.12, not two columns, as in listing 1.13. With CACHE_STEPS
// the workgroup meets after every so many steps, to keep its operands in the cache together
// (cacheblockedNT, listing 1.13, which needs k in whole such steps).
#ifndef WG_X
#define WG_X 4
#endif
#ifndef WG_Y
#define WG_Y 16
#endif
#ifndef ROWS_FIRST
#define ROWS_FIRST 0
#endif
#ifndef CACHE_STEPS
#define CACHE_STEPS 0
#endif
#include "common/launch.glsl"
#include "matmul/operands.glsl"
#include "matmul/scalar.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
uniform int m, n, k;
uniform int x_row, weight_row, out_row;  // floats, multiples of 4

void store(float sum, int row, int column) {
    if (row >= m || column >= n) return;
    int place = row * out_row + column;
    finish(sum, column, place);
}

void main() {
#if ROWS_FIRST
    int row = int(INVOCATION_ID.x) * 2;
    int column = int(INVOCATION_ID.y) * 2;
#else
    int column = int(INVOCATION_ID.x) * 2;
    int row = int(INVOCATION_ID.y) * 2;
#endif
    int a0 = min(row, m - 1) * (x_row / 4), a1 = min(row + 1, m - 1) * (x_row / 4);
    int b0 = min(column, n - 1) * (weight_row / 4), b1 = min(column + 1, n - 1) * (weight_row / 4);
    vec4 sum = vec4(0.0);
    int whole = k / 4;
    for (int i = 0; i < whole; ++i) {
        vec4 p = x[a0 + i], q = x[a1 + i], u = weight[b0 + i], v = weight[b1 + i];
        sum += vec4(dot(p, u), dot(p, v), dot(q, u), dot(q, v));
#if CACHE_STEPS
        if (i % CACHE_STEPS == CACHE_STEPS - 1) barrier();
#endif
    }
    if (whole * 4 < k) {
        int rest = k - whole * 4;
        vec4 p = first_of(x[a0 + whole], rest), q = first_of(x[a1 + whole], rest);
        vec4 u = weight[b0 + whole], v = weight[b1 + whole];
        sum += vec4(dot(p, u), dot(p, v), dot(q, u), dot(q, v));
    }
    store(sum.x, row, column);
    store(sum.y, row, column + 1);
    store(sum.z, row + 1, column);
    store(sum.w, row + 1, column + 1);
}
