#version 310 es
// 1 x 4 results an invocation, by a dot of A's row with each of four of B's (Gronqvist's NT kernels
// of table 1.4, 1 x 4 x 4: invocation id 1 is his row i, id 0 four of his columns, j). With
// CACHE_STEPS the workgroup meets after every so many steps, as listing 1.13 has it.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
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

vec4 dots(vec4 p, ivec4 b, int i) {
    return vec4(dot(p, weight[b.x + i]), dot(p, weight[b.y + i]), dot(p, weight[b.z + i]),
                dot(p, weight[b.w + i]));
}

void main() {
    int column = int(INVOCATION_ID.x) * 4;
    int row = int(INVOCATION_ID.y);
    // Invocations past the result repeat its last ones: all must meet.
    int a = min(row, m - 1) * (x_row / 4);
    ivec4 b = min(column + ivec4(0, 1, 2, 3), n - 1) * (weight_row / 4);
    vec4 sum = vec4(0.0);
    int whole = k / 4;
    for (int i = 0; i < whole; ++i) {
        sum += dots(x[a + i], b, i);
#if CACHE_STEPS
        if (i % CACHE_STEPS == CACHE_STEPS - 1) barrier();
#endif
    }
    if (whole * 4 < k) sum += dots(first_of(x[a + whole], k - whole * 4), b, whole);
    if (row >= m) return;
    for (int j = 0; j < 4; ++j) {
        int place = row * out_row + column + j;
        if (column + j < n) finish(sum[j], column + j, place);
    }
}
