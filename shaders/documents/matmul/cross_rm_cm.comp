#version 310 es
// One result an invocation, scalar; both operands are walked along k (Rovder 2017, source 7.1,
// invocation id 0 being his row, a neuron; Gronqvist's scalarNT, listing 1.10, id 1 being his row i).
// Rovder left the workgroups to OpenCL, which fills them along id 0 first (his section 9.2.1): 64 x 1.
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
uniform int x_row, weight_row, out_row;

void main() {
    int column = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y);
    if (row >= m || column >= n) return;
    float sum = 0.0;
    for (int i = 0; i < k; ++i) sum += weight[column * weight_row + i] * x[row * x_row + i];
    int place = row * out_row + column;
    finish(sum, column, place);
}
