#version 310 es
// One function of every element of a matrix in chunks of 2 samples by four, a vec4 an invocation
// (Rovder 2017, section 9.2, grouped Morton 4-2).
#ifndef WG_X
#define WG_X 4
#endif
#ifndef WG_Y
#define WG_Y 16
#endif
#include "activation/function.glsl"
#include "common/launch.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
uniform int x_rows, x_columns;  // padded

void main() {
    int quad = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y);
    int quads = x_columns / 4;
    if (row >= x_rows || quad >= quads) return;
    int place = (row / 2 * quads + quad) * 2 + row % 2;
    result[place] = activate(x[place]);
}
