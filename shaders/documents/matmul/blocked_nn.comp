#version 310 es
// 1 x 4 results an invocation, all row major: a vec4 of A's row times four vec4 of B's rows
// (Gronqvist's blockedNN, 1 x 4 x 4, listing 1.11: invocation id 1 is his row i, id 0 four of his
// columns, j). With CACHE_STEPS the workgroup meets after every so many steps, to keep its operands
// in the cache together (cacheblockedNN, as listing 1.13 has it).
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
#include "matmul/scalar.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
uniform int m, n, k;
uniform int x_row, weight_rows, out_row;  // floats, multiples of 4

void main() {
    int quad = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y);
    // Invocations past the result repeat its last ones: all must meet.
    int a = min(row, m - 1) * (x_row / 4), b = min(quad, (n - 1) / 4);
    int stride = weight_rows / 4, whole = k / 4;
    vec4 sum = vec4(0.0);
    for (int i = 0; i < whole; ++i, b += 4 * stride) {
        vec4 p = x[a + i];
        sum += p.x * weight[b] + p.y * weight[b + stride] + p.z * weight[b + 2 * stride] +
               p.w * weight[b + 3 * stride];
#if CACHE_STEPS
        if (i % CACHE_STEPS == CACHE_STEPS - 1) barrier();
#endif
    }
    if (whole * 4 < k) {
        vec4 p = x[a + whole];
        for (int j = 0; j < 3; ++j)
            if (whole * 4 + j < k) sum += p[j] * weight[b + j * stride];
    }
    if (row >= m) return;
    for (int j = 0; j < 4; ++j) {
        int place = row * out_row + quad * 4 + j;
        if (quad * 4 + j < n) finish(sum[j], quad * 4 + j, place);
    }
}
