#version 310 es
// C = A B^T: TM rows by 4 TN columns an invocation, no shared memory.
// A row of x is read as vec4 along k; the weights lie as 4 x 4 tiles, so four vec4 of a tile
// multiply one vec4 of x. After blockedNT of Gronqvist, section 1.4.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef TM
#define TM 4
#endif
#ifndef TN
#define TN 1
#endif
#ifndef BATCHED
#define BATCHED 0
#endif
#include "common/launch.glsl"
#include "matmul/operands.glsl"
#include "matmul/vector.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
uniform int m, n, k;
uniform int x_row, weight_rows, weight_matrix, out_row;  // floats, multiples of 4

void main() {
#if BATCHED
    int batch = int(WORKGROUP_ID.z);
#else
    const int batch = 0;
#endif
    int columns = (n + 3) / 4;
    int column = int(INVOCATION_ID.x) * TN;
    int row = int(INVOCATION_ID.y) * TM;
    if (row >= m || column >= columns) return;

    vec4 sum[TM * TN];
    for (int i = 0; i < TM * TN; ++i) sum[i] = vec4(0.0);
    int stride = x_row / 4;
    int first = (batch * m + row) * stride;
    int tiles = batch * (weight_matrix / 4);
    int last = m - 1 - row;  // rows past the matrix repeat its last one

    int steps = (k + 3) / 4;
    for (int step = 0; step < steps; ++step) {
        vec4 a[TM];
        for (int i = 0; i < TM; ++i) a[i] = x_at(first + min(i, last) * stride + step);
        if (4 * step + 4 > k)  // the row's padding may hold anything
            for (int i = 0; i < TM; ++i) a[i] = first_of(a[i], k - 4 * step);
        for (int j = 0; j < TN; ++j) {
            int tile = tiles + (step * (weight_rows / 4) + min(column + j, columns - 1)) * 4;
            for (int l = 0; l < 4; ++l) {
                vec4 b = weight_at(tile + l);
                for (int i = 0; i < TM; ++i) sum[i * TN + j] += a[i][l] * b;
            }
        }
    }
    int target = (batch * m + row) * (out_row / 4) + column;
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j)
            if (row + i < m && column + j < columns)
                finish(sum[i * TN + j], column + j, target + i * (out_row / 4) + j);
}
