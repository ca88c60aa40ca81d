#version 300 es
// C = A B^T by transform feedback: a vertex computes ROWS rows of four
// times QUADS columns, the whole sums at once (Cronin 2018 captures parts and adds them afterwards,
// and leaves several vectors a vertex to others). The tiles follow one another row by row.
#ifndef ROWS
#define ROWS 1
#endif
#ifndef QUADS
#define QUADS 1
#endif
#ifndef BATCHED
#define BATCHED 0
#endif
#include "common/first_of.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp WEIGHT_SAMPLER weight;
uniform int m, n, k, batch;
uniform int x_row, weight_matrix, out_columns;  // floats
#include <epilogue>
out highp vec4 result[ROWS * QUADS];

vec4 sum[ROWS * QUADS];

// Adds four products to each sum; `rest` of k are left.
void add(ivec4 start[(ROWS + 3) / 4], int tile[QUADS], int i, int rest) {
    vec4 w[4 * QUADS];
    for (int quad = 0; quad < QUADS; ++quad)
        for (int j = 0; j < 4; ++j) w[quad * 4 + j] = texel(weight, tile[quad] + j);
    for (int row = 0; row < ROWS; ++row) {
        // The row's padding may hold anything.
        vec4 a = first_of(texel(x, start[row / 4][row % 4] + i), rest);
        for (int quad = 0; quad < QUADS; ++quad)
            sum[row * QUADS + quad] += a.x * w[quad * 4] + a.y * w[quad * 4 + 1]
                                     + a.z * w[quad * 4 + 2] + a.w * w[quad * 4 + 3];
    }
}

void main() {
    int across = out_columns / (4 * QUADS);
    int top = gl_VertexID / across;
    int left = (gl_VertexID - top * across) * QUADS;
    top *= ROWS;
    int columns = (n + 3) / 4;
    // What reaches beyond the result's last row or column repeats it.
    ivec4 start[(ROWS + 3) / 4];
    for (int row = 0; row < ROWS; ++row)
        start[row / 4][row % 4] = min(top + row, m * batch - 1) * (x_row / 4);
    int tile[QUADS];
    for (int quad = 0; quad < QUADS; ++quad) {
        tile[quad] = min(left + quad, columns - 1) * 4;
#if BATCHED
        tile[quad] += top / m * (weight_matrix / 4);
#endif
    }
    for (int i = 0; i < ROWS * QUADS; ++i) sum[i] = vec4(0.0);
    for (int i = 0; i < k / 4; ++i) {
        add(start, tile, i, 4);
        for (int quad = 0; quad < QUADS; ++quad) tile[quad] += columns * 4;
    }
    if (k % 4 > 0) add(start, tile, k / 4, k % 4);
    for (int row = 0; row < ROWS; ++row) {
        for (int quad = 0; quad < QUADS; ++quad) {
            int i = row * QUADS + quad;
            int at = gl_VertexID * (ROWS * QUADS) + i;
            result[i] = epilogue(sum[i], at, min(left + quad, columns - 1));
        }
    }
}
