#version 310 es
// C = A B^T: TM rows by 4 TN columns an invocation, no shared memory.
// A row of x is read as vec4 along k. Constant weights are stored as 4 x 4 tiles, whose four vec4 are
// multiplied by one vec4 of x. After blockedNT of Gronqvist, section 1.4.
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
#include "matmul/quads.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;

void main() {
#if BATCHED
    int matrix = int(WORKGROUP_ID.z);
#else
    const int matrix = 0;
#endif
    int columns = (n + 3) / 4;
    int column = int(INVOCATION_ID.x) * TN;
    int row = int(INVOCATION_ID.y) * TM;
    if (row >= m || column >= columns) return;

    accumulate(matrix, row, column, 0, 1);
    vec4 totals[TM * TN];  // a copy: Mesa does not unroll loops of long epilogues, and spills what they index
    for (int i = 0; i < TM * TN; ++i) totals[i] = sum[i];
    int target = (matrix * m + row) * (out_row >> 2) + (out_first >> 2) + column;
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j)
            if (row + i < m && column + j < columns)
                finish(totals[i * TN + j], column + j, target + i * (out_row >> 2) + j);
}
