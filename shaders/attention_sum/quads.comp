#version 310 es
// Merges parts of attention, four numbers of a row an invocation: for many rows of few parts. As
// rows.comp.
#ifndef WG_X
#define WG_X 16
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef ZEROS
#define ZEROS 0
#endif
#include "common/launch.glsl"
#include "common/nan.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
uniform int tokens, heads, width, parts, x_row, out_row;

void main() {
    int quad = int(INVOCATION_ID.x), row = int(INVOCATION_ID.y);
    int quads = width / 4, token = row / heads, head = row - token * heads;
    if (quad >= quads || token >= tokens) return;
    int stride = quads + 1, from = token * (x_row / 4) + head * parts * stride;
    float maximum = LEAST, weight_sum = 0.0;
    for (int i = 0; i < parts; ++i) maximum = greater(maximum, x[from + i * stride + quads].x);
    vec4 sum = vec4(0.0);
    for (int i = 0; i < parts; ++i) {
        vec4 found = x[from + i * stride + quads];
        float rescale = exp_minus(maximum - found.x);
        sum += rescale * x[from + i * stride + quad];
        weight_sum += rescale * found.y;
    }
    bool is_valid = x[from + quads].z != 0.0;
#if ZEROS
    is_valid = is_valid && is_finite(weight_sum) && weight_sum > 0.0;
#endif
    result[(token * out_row + head * width) / 4 + quad] = is_valid ? sum / weight_sum : vec4(0.0);
}
