#version 310 es
// 2 x 2 results an invocation, four dots a step, with all matrices in chunks of CHUNK samples by
// four (Rovder 2017, appendices 12.6 and 12.7: C 4 2 C and C 4 4 C with samples as columns are
// R 2 4 R and R 4 4 R with samples as rows; invocation id 0 is two of his rows, neurons). The result
// lies as the operand, so layers chain.
#ifndef WG_X
#define WG_X 4
#endif
#ifndef WG_Y
#define WG_Y 16
#endif
#ifndef CHUNK
#define CHUNK 2
#endif
#include "common/launch.glsl"
#include "matmul/scalar.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
uniform int m, n;
uniform int x_columns, out_rows, out_columns;  // padded

void store(float sum, int row, int column) {
    if (row >= out_rows || column >= out_columns) return;
    int chunk = row / CHUNK * (out_columns / 4) + column / 4;
    int place = (chunk * CHUNK + row % CHUNK) * 4 + column % 4;
    // Padding becomes 0: the next layer multiplies it by the 0 of its weights' padding.
    if (row < m && column < n)
        finish(sum, column, place);
    else
        result[place] = 0.0;
}

void main() {
    int column = int(INVOCATION_ID.x) * 2;
    int row = int(INVOCATION_ID.y) * 2;
    int quads = x_columns / 4;
    // Rows past the operands repeat their last chunk.
    int a = min(row, m - 1) / CHUNK * quads * CHUNK + row % CHUNK;
    int b = min(column, n - 1) / CHUNK * quads * CHUNK + column % CHUNK;
    vec4 sum = vec4(0.0);
    for (int i = 0; i < quads; ++i) {
        vec4 p = x[a], q = x[a + 1], u = weight[b], v = weight[b + 1];
        sum += vec4(dot(p, u), dot(p, v), dot(q, u), dot(q, v));
        a += CHUNK;
        b += CHUNK;
    }
    store(sum.x, row, column);
    store(sum.y, row, column + 1);
    store(sum.z, row + 1, column);
    store(sum.w, row + 1, column + 1);
}
