#version 310 es
// One result an invocation, scalar; the second operand is walked across its rows
// (Rovder 2017, source 6.1: weights and samples row major, samples being columns; invocation id 0 is
// his row, a neuron, so that neighbouring invocations write apart from one another). He left the
// workgroups to OpenCL, which fills them along id 0 first (his section 9.2.1): 64 x 1 here.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef WG_Y
#define WG_Y 1
#endif
#include "common/launch.glsl"
#include "matmul/scalar.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { float weight[]; };
uniform int m, n, k;
uniform int x_rows, weight_row, out_rows;

void main() {
    int column = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y);
    if (row >= m || column >= n) return;
    float sum = 0.0;
    for (int i = 0; i < k; ++i) sum += weight[column * weight_row + i] * x[i * x_rows + row];
    int place = column * out_rows + row;
    finish(sum, column, place);
}
