#version 310 es
// An expression of a bias and a row-major matrix, a vec4 an invocation (Rovder 2017, section 9.1,
// vectorised, column major with samples as columns; invocation id 0 is four of his rows, neurons).
#ifndef WG_X
#define WG_X 64
#endif
#ifndef WG_Y
#define WG_Y 1
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X0 { vec4 x0[]; };
layout(std430, binding = 1) buffer X1 { vec4 x1[]; };
layout(std430, binding = 2) buffer Out { vec4 result[]; };
uniform int x0_rows, x0_columns;  // padded
#include <expression>

void main() {
    int quad = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y);
    int quads = x0_columns / 4;
    if (row >= x0_rows || quad >= quads) return;
    int place = row * quads + quad;
    result[place] = apply(x0[place], x1[quad]);
}
