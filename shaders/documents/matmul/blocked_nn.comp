#version 310 es
// 1 x 4 results an invocation, all row major: a vec4 of A's row times four vec4 of B's rows
// (Gronqvist's blockedNN, 1 x 4 x 4).
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
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
    if (row >= m || quad * 4 >= n) return;
    int stride = weight_rows / 4;
    vec4 sum = vec4(0.0);
    for (int i = 0; i < k; i += 4) {
        vec4 a = x[(row * x_row + i) / 4];
        for (int j = 0; j < 4; ++j)
            if (i + j < k) sum += a[j] * weight[(i + j) * stride + quad];
    }
    for (int j = 0; j < 4; ++j) {
        int place = row * out_row + quad * 4 + j;
        if (quad * 4 + j < n) finish(sum[j], quad * 4 + j, place);
    }
}
