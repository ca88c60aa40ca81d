#version 310 es
// Four neighbouring samples of one column an invocation: a vec4 of the weights' row times four vec4
// of the samples (Rovder 2017, appendix 12.2, samples being columns, row major).
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
    int quad = int(INVOCATION_ID.x);
    int column = int(INVOCATION_ID.y);
    if (quad * 4 >= m || column >= n) return;
    int stride = x_rows / 4;
    vec4 sum = vec4(0.0);
    for (int i = 0; i < k; i += 4) {
        vec4 b = weight[(column * weight_row + i) / 4];
        for (int j = 0; j < 4; ++j)
            if (i + j < k) sum += b[j] * x[(i + j) * stride + quad];
    }
    for (int j = 0; j < 4; ++j) {
        int place = column * out_rows + quad * 4 + j;
        if (quad * 4 + j < m) finish(sum[j], column, place);
    }
}
