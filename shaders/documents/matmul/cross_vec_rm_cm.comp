#version 310 es
// One result an invocation, by vec4 and dot along k (Rovder 2017, source 7.2, invocation id 0 being
// his row, a neuron).
#ifndef WG_X
#define WG_X 4
#endif
#ifndef WG_Y
#define WG_Y 16
#endif
#include "common/launch.glsl"
#include "matmul/operands.glsl"
#include "matmul/scalar.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
uniform int m, n, k;
uniform int x_row, weight_row, out_row;  // floats, multiples of 4

void main() {
    int column = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y);
    if (row >= m || column >= n) return;
    int a = row * (x_row / 4);
    int b = column * (weight_row / 4);
    float sum = 0.0;
    int whole = k / 4;
    for (int i = 0; i < whole; ++i) sum += dot(x[a + i], weight[b + i]);
    if (whole * 4 < k) sum += dot(first_of(x[a + whole], k - whole * 4), weight[b + whole]);
    int place = row * out_row + column;
    finish(sum, column, place);
}
