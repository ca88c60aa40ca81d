#version 310 es
// An expression of a matrix in chunks of 2 samples by four, one element an invocation (Rovder 2017,
// section 9.2, grouped Morton 4-2; invocation id 0 is his row, a neuron, here a column).
#ifndef WG_X
#define WG_X 4
#endif
#ifndef WG_Y
#define WG_Y 16
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X0 { float x0[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int x0_rows, x0_columns;  // padded
#include <expression>

void main() {
    int column = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y);
    if (row >= x0_rows || column >= x0_columns) return;
    int chunk = row / 2 * (x0_columns / 4) + column / 4;
    int place = chunk * 8 + row % 2 * 4 + column % 4;
    result[place] = apply(x0[place]);
}
