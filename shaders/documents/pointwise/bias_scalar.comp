#version 310 es
// An expression of a matrix and one number for each column, as a bias is: one element an invocation,
// over a grid of two dimensions (Rovder 2017, section 9.1; invocation id 0 is his row, a neuron, here
// a column). COLUMN_MAJOR tells how the matrix lies, samples being rows.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef WG_Y
#define WG_Y 1
#endif
#ifndef COLUMN_MAJOR
#define COLUMN_MAJOR 0
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X0 { float x0[]; };
layout(std430, binding = 1) buffer X1 { float x1[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
uniform int x0_rows, x0_columns;  // padded
#include <expression>

void main() {
    int column = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y);
    if (row >= x0_rows || column >= x0_columns) return;
#if COLUMN_MAJOR
    int place = column * x0_rows + row;
#else
    int place = row * x0_columns + column;
#endif
    result[place] = apply(x0[place], x1[column]);
}
