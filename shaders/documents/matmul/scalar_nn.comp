#version 310 es
// One result an invocation, scalar, all row major: C = A B as it is written (Gronqvist's scalarNN,
// listing 1.9, invocation id 1 being his row i; Cheng's version 1).
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#include "common/launch.glsl"
#include "matmul/scalar.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { float weight[]; };
uniform int m, n, k;
uniform int x_row, weight_rows, out_row;

void main() {
    int column = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y);
    if (row >= m || column >= n) return;
    float sum = 0.0;
    for (int i = 0; i < k; ++i) sum += x[row * x_row + i] * weight[i * weight_rows + column];
    int place = row * out_row + column;
    finish(sum, column, place);
}
