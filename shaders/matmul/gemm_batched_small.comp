#version 310 es
// C = A B^T for stacks of small matrices: TM rows by 4 TN columns an invocation, no shared memory.
// As gemm_blocked, but a workgroup computes several matrices (matmul/flat.glsl).
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
#include "matmul/flat.glsl"
#include "matmul/operands.glsl"
#include "matmul/vector.glsl"
#include "matmul/quads.glsl"
layout(local_size_x = WG_X) in;

void main() {
    int columns = (n + 3) / 4;
    ivec3 place = flat_place(int(INVOCATION_ID.x), columns, m, TN, TM);
    int matrix = place.x, row = place.y, column = place.z;
    if (matrix >= batch) return;

    accumulate(matrix, row, column, 0, 1);
    int target = (matrix * m + row) * (out_row >> 2) + (out_first >> 2) + column;
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j)
            if (row + i < m && column + j < columns)
                finish(sum[i * TN + j], column + j, target + i * (out_row >> 2) + j);
}
