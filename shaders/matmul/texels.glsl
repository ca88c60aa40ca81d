// The operands of a product from texels: x in rows, or in columns (X_IN_C); the weights as 4 x 4
// tiles, or in rows (WEIGHT_IN_R4), or in columns (WEIGHT_IN_C), or packed (QUANTIZED).
#ifndef QUANTIZED
#define QUANTIZED 0
#endif
#if QUANTIZED
#define WEIGHT_IN_R4 1
#ifndef WEIGHT_SAMPLER
#define WEIGHT_SAMPLER isampler2D
#endif
#endif
#include "matmul/layouts.glsl"
#include "common/first_of.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp WEIGHT_SAMPLER weight;
#if QUANTIZED
uniform int units;
#define PACKED(i) uvec4(texel(weight, i))
#include "common/quantized.glsl"
#endif
uniform int n, k;
uniform int x_row, x_rows, weight_row, weight_rows, weight_matrix;  // floats, multiples of 4

#if X_IN_C
// A quad of rows of x at depth `j` of a step of four, of which `left` are inside of k.
vec4 column_of(int quad, int step, int j, int left) {
    return j < left ? texel(x, (4 * step + j) * (x_rows / 4) + quad) : vec4(0.0);
}
#endif

#if WEIGHT_IN_R4
// The weights of a step and one column.
vec4 row_of(int matrix, int column, int step, int left) {
#if QUANTIZED
    return first_of(unpacked(min(column, n - 1) * units * 8 + step), left);
#else
    int stride = (BATCHED == 1 ? k : weight_row) / 4;
    int offset = matrix * (weight_row / 4) + min(column, n - 1) * stride + step;
    return first_of(texel(weight, offset), left);
#endif
}
#endif

// The weights of a matrix of the batch, a quad of columns and a step: a vec4 of columns for each depth.
// Memory past k may hold anything.
mat4 weights_of(int matrix, int quad, int step, int left) {
    mat4 weights;
#if WEIGHT_IN_R4
    for (int j = 0; j < 4; ++j) weights[j] = row_of(matrix, 4 * quad + j, step, left);
    return transpose(weights);
#elif WEIGHT_IN_C
    int first = matrix * (weight_matrix / 4) + 4 * step * (weight_rows / 4) + quad;
    for (int j = 0; j < 4; ++j)
        weights[j] = j < left ? texel(weight, first + j * (weight_rows / 4)) : vec4(0.0);
    return weights;
#else
    int tile = matrix * (weight_matrix / 4) + step * weight_rows + quad * 4;
    for (int j = 0; j < 4; ++j) weights[j] = texel(weight, tile + j);
    return weights;
#endif
}
