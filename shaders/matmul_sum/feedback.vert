#version 300 es
// act(alpha sum + bias + beta c) by transform feedback: a vertex adds up the parts of four columns of
// a row. With QUADS they lie side by side, a texel each.
#ifndef QUADS
#define QUADS 0
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_C
#define HAS_C 0
#endif
#ifndef C_SAMPLER
#define C_SAMPLER sampler2D
#endif
#include "common/activation.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
#if HAS_BIAS
uniform highp BIAS_SAMPLER bias;
#endif
#if HAS_C
uniform highp C_SAMPLER c;
#endif
uniform int n, parts;
uniform int row_step, column_step, part_step;  // floats of x
uniform int out_row;
uniform float alpha, beta;
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
    sum *= alpha;
#if HAS_BIAS
    sum += texel(bias, column / 4);
#endif
#if HAS_C
    sum += beta * texel(c, gl_VertexID);
#endif
    result = activate(sum);
}
