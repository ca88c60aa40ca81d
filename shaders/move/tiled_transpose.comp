#version 310 es
// Transposition of matrices, whose reads are contiguous along one loop and whose writes along another: tiles of
// 32 x 32 words go through shared memory, so that both are coalesced.
#ifndef ROWS
#define ROWS 4
#endif
#ifndef RANK
#define RANK 2
#endif
#define TILE 32
#include "common/launch.glsl"
#include "common/barrier.glsl"
layout(local_size_x = TILE, local_size_y = ROWS) in;
layout(std430, binding = 0) buffer X { int x[]; };
layout(std430, binding = 1) buffer Out { int result[]; };
uniform int high, wide;            // the loop with contiguous reads, and the one with contiguous writes
uniform int wide_reads;
uniform int inner, inner_writes, outer_writes;  // writes of `high` are two loops, outer and inner
uniform int tiles, tiles_wide, tiles_each;  // in all, of a row of tiles, of one transposed matrix
uniform int base, target_base;
#if RANK > 2
uniform int pitch[RANK - 2], reads[RANK - 2], writes[RANK - 2];  // the loops around
#endif
shared int tile[TILE * (TILE + 1)];  // odd pitch: a column is in different banks

void main() {
    int column = int(gl_LocalInvocationID.x), row = int(gl_LocalInvocationID.y);
    for (int t = int(WORKGROUP_ID.x); t < tiles; t += int(WORKGROUP_COUNT.x)) {
        int matrix = t / tiles_each;
        int in_matrix = t - matrix * tiles_each;
        int top = in_matrix / tiles_wide * TILE, left = in_matrix % tiles_wide * TILE;
        int source = base, target = target_base;
#if RANK > 2
        for (int d = 0; d < RANK - 2; ++d) {
            int c = matrix / pitch[d];
            matrix -= c * pitch[d];
            source += c * reads[d];
            target += c * writes[d];
        }
#endif
        for (int i = row; i < TILE; i += ROWS)
            if (top + column < high && left + i < wide)
                tile[i * (TILE + 1) + column] = x[source + top + column + (left + i) * wide_reads];
        workgroup_barrier();
        for (int i = row; i < TILE; i += ROWS) {
            int outer = (top + i) / inner;
            int offset = outer * outer_writes + (top + i - outer * inner) * inner_writes;
            if (top + i < high && left + column < wide)
                result[target + left + column + offset] = tile[column * (TILE + 1) + i];
        }
        workgroup_barrier();
    }
}
