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
#include "matmul/texels.glsl"
uniform int m, batch, out_columns;
#include <epilogue>
out highp vec4 result[ROWS * QUADS];

vec4 sum[ROWS * QUADS];

// Adds four products to each sum; `rest` of k are left. start: where each row begins, or, of x in
// columns, each quad of rows.
void add(ivec4 start[(ROWS + 3) / 4], int matrix, int quads[QUADS], int step, int rest) {
#if X_IN_C && WEIGHT_IN_R4
    for (int i = 0; i < (ROWS + 3) / 4; ++i) {
        mat4 a;
        for (int j = 0; j < 4; ++j) a[j] = column_of(start[i].x, step, j, rest);
        for (int quad = 0; quad < QUADS; ++quad)
            for (int j = 0; j < 4; ++j) {
                vec4 products = a * row_of(matrix, 4 * quads[quad] + j, step, rest);
                for (int row = 4 * i; row < min(4 * i + 4, ROWS); ++row)
                    sum[row * QUADS + quad][j] += products[start[i].y + row % 4];
            }
    }
#else
    vec4 w[4 * QUADS];
    for (int quad = 0; quad < QUADS; ++quad) {
        mat4 four = weights_of(matrix, quads[quad], step, rest);
        for (int j = 0; j < 4; ++j) w[quad * 4 + j] = four[j];
    }
#if X_IN_C
    for (int i = 0; i < (ROWS + 3) / 4; ++i) {
        for (int j = 0; j < 4; ++j) {
            vec4 a = column_of(start[i].x, step, j, rest);
            for (int row = 4 * i; row < min(4 * i + 4, ROWS); ++row)
                for (int quad = 0; quad < QUADS; ++quad)
                    sum[row * QUADS + quad] += a[start[i].y + row % 4] * w[quad * 4 + j];
        }
    }
#else
    for (int row = 0; row < ROWS; ++row) {
        // The row's padding may hold anything.
        vec4 a = first_of(texel(x, start[row / 4][row % 4] + step), rest);
        for (int quad = 0; quad < QUADS; ++quad)
            sum[row * QUADS + quad] += a.x * w[quad * 4] + a.y * w[quad * 4 + 1]
                                     + a.z * w[quad * 4 + 2] + a.w * w[quad * 4 + 3];
    }
#endif
#endif
}

void main() {
    int across = out_columns / (4 * QUADS);
    int top = gl_VertexID / across;
    int left = (gl_VertexID - top * across) * QUADS;
    top *= ROWS;
    int columns = (n + 3) / 4;
    // What reaches beyond the result's last row or column repeats it.
    ivec4 start[(ROWS + 3) / 4];
    for (int row = 0; row < ROWS; ++row) {
#if X_IN_C
        if (row % 4 == 0) start[row / 4] = ivec4(min(top + row, m - 1) / 4, ROWS < 4 ? top % 4 : 0, 0, 0);
#else
        start[row / 4][row % 4] = min(top + row, m * batch - 1) * (x_row / 4);
#endif
    }
    int quads[QUADS];
    for (int quad = 0; quad < QUADS; ++quad) quads[quad] = min(left + quad, columns - 1);
#if BATCHED
    int matrix = top / m;
#else
    const int matrix = 0;
#endif
    for (int i = 0; i < ROWS * QUADS; ++i) sum[i] = vec4(0.0);
    for (int step = 0; step < k / 4; ++step) add(start, matrix, quads, step, 4);
    if (k % 4 > 0) add(start, matrix, quads, k / 4, k % 4);
    for (int row = 0; row < ROWS; ++row) {
        for (int quad = 0; quad < QUADS; ++quad) {
            int i = row * QUADS + quad;
            int at = gl_VertexID * (ROWS * QUADS) + i;
            result[i] = epilogue(sum[i], at, quads[quad]);
        }
    }
}
