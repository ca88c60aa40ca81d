#version 310 es
// Four neighbouring samples of one column an invocation: a vec4 of the weights' row times four vec4
// of the samples (Rovder 2017, appendix 12.2, samples being columns, row major; invocation id 0 is
// his row, a neuron, and id 1 four of his columns).
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
uniform int x_rows, weight_row, out_rows;  // floats, multiples of 4

void main() {
    int column = int(INVOCATION_ID.x);
    int quad = int(INVOCATION_ID.y);
    if (quad * 4 >= m || column >= n) return;
    int a = column * (weight_row / 4), b = quad, stride = x_rows / 4, whole = k / 4;
    vec4 sum = vec4(0.0);
    for (int i = 0; i < whole; ++i, b += 4 * stride) {
        vec4 p = weight[a + i];
        sum += p.x * x[b] + p.y * x[b + stride] + p.z * x[b + 2 * stride] + p.w * x[b + 3 * stride];
    }
    if (whole * 4 < k) {
        vec4 p = weight[a + whole];
        for (int j = 0; j < 3; ++j)
            if (whole * 4 + j < k) sum += p[j] * x[b + j * stride];
    }
    for (int j = 0; j < 4; ++j) {
        int place = column * out_rows + quad * 4 + j;
        if (quad * 4 + j < m) finish(sum[j], column, place);
    }
}
