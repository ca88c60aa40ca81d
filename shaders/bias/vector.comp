#version 310 es
// Adds the bias to a row-major matrix, a vec4 an invocation (Rovder 2017, section 9.1, vectorised,
// column major with samples as columns).
#ifndef WG_X
#define WG_X 64
#endif
#ifndef WG_Y
#define WG_Y 1
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Bias { vec4 bias[]; };
layout(std430, binding = 2) buffer Out { vec4 result[]; };
uniform int n;
uniform int x_columns;  // padded

void main() {
    int quad = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y);
    int quads = x_columns / 4;
    if (row >= n || quad >= quads) return;
    int place = row * quads + quad;
    result[place] = x[place] + bias[quad];
}
