#version 310 es
// C = A B^T for stacks of small matrices: TM rows by 4 TN columns an invocation, no shared memory.
// Invocations follow one another through quads of columns, then rows, then matrices, so that a
// workgroup has several matrices, and work for each of its invocations.
#ifndef WG_X
#define WG_X 64
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
#include "matmul/quads.glsl"
layout(local_size_x = WG_X) in;
uniform int batch;

void main() {
    int columns = (n + 3) / 4;
    int across = (columns + TN - 1) / TN, down = (m + TM - 1) / TM;
    int block = int(INVOCATION_ID.x) / across;
    int matrix = block / down;
    int column = (int(INVOCATION_ID.x) - block * across) * TN;
    int row = (block - matrix * down) * TM;
    if (matrix >= batch) return;

    add_up(matrix, row, column, 0, 1);
    int target = (matrix * m + row) * (out_row >> 2) + (out_first >> 2) + column;
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j)
            if (row + i < m && column + j < columns)
                finish(sum[i * TN + j], column + j, target + i * (out_row >> 2) + j);
}
