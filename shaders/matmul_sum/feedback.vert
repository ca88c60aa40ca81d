#version 300 es
// The sums of the parts by transform feedback: a vertex adds up those of four columns of a row. With QUADS they lie side by side, a texel each.
#ifndef QUADS
#define QUADS 0
#endif
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform int n, parts;
uniform int row_step, column_step, part_step;  // floats of x
uniform int out_row;
#include <epilogue>
out highp vec4 result;

float total(int row, int column) {
    int first = row * row_step + min(column, n - 1) * column_step;
    float sum = 0.0;
    for (int part = 0; part < parts; ++part) sum += texel(x, first + part * part_step).x;
    return sum;
}

void main() {
    int columns = out_row / 4;
    int row = gl_VertexID / columns;
    int column = (gl_VertexID - row * columns) * 4;
#if QUADS
    vec4 sum = vec4(0.0);
    for (int part = 0; part < parts; ++part)
        sum += texel(x, (row * row_step + column + part * part_step) / 4);
#else
    vec4 sum = vec4(total(row, column), total(row, column + 1), total(row, column + 2),
                    total(row, column + 3));
#endif
    result = epilogue(sum, gl_VertexID, column / 4);
}
