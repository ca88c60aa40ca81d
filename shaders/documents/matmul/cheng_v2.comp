#version 310 es
// One result an invocation through TILE x TILE tiles of both operands in shared memory
// (Cheng's version 2, TILE = 16).
#ifndef TILE
#define TILE 16
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "matmul/scalar.glsl"
layout(local_size_x = TILE, local_size_y = TILE) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { float weight[]; };
uniform int m, n, k;
uniform int x_row, weight_rows, out_row;
shared float a_tile[TILE * TILE];
shared float b_tile[TILE * TILE];

void main() {
    int across = int(gl_LocalInvocationID.x), down = int(gl_LocalInvocationID.y);
    int column = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y);
    float sum = 0.0;
    for (int start = 0; start < k; start += TILE) {
        a_tile[down * TILE + across] =
            row < m && start + across < k ? x[row * x_row + start + across] : 0.0;
        b_tile[down * TILE + across] =
            column < n && start + down < k ? weight[(start + down) * weight_rows + column] : 0.0;
        workgroup_barrier();
        for (int i = 0; i < TILE; ++i) sum += a_tile[down * TILE + i] * b_tile[i * TILE + across];
        workgroup_barrier();
    }
    if (row >= m || column >= n) return;
    int place = row * out_row + column;
    finish(sum, column, place);
}
