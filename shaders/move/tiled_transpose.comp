#version 310 es
// What reads neighbours along one loop and writes them along another: tiles of 32 x 32 words through
// shared memory, so that both are read and written side by side.
#ifndef ROWS
#define ROWS 4
#endif
#ifndef RANK
#define RANK 2
#endif
#define TILE 32
#include "common/launch.glsl"
#include "common/wait.glsl"
layout(local_size_x = TILE, local_size_y = ROWS) in;
layout(std430, binding = 0) buffer X { int x[]; };
layout(std430, binding = 1) buffer Out { int result[]; };
uniform int high, wide;            // the loop that reads neighbours, and the one that writes them
uniform int wide_reads;
uniform int inner, inner_writes, outer_writes;  // the first is two where it writes: one in another
uniform int tiles, tiles_wide, tiles_each;  // in all, of a row of tiles, of one transposed matrix
uniform int base, target_base;
#if RANK > 2
uniform int pitch[RANK - 2], reads[RANK - 2], writes[RANK - 2];  // the loops around
#endif
shared int tile[TILE * (TILE + 1)];  // one more: neighbours below lie in other banks

void main() {
    int column = int(gl_LocalInvocationID.x), row = int(gl_LocalInvocationID.y);
    for (int t = int(WORKGROUP_ID.x); t < tiles; t += int(WORKGROUP_COUNT.x)) {
        int matrix = t / tiles_each;
        int rest = t - matrix * tiles_each;
        int top = rest / tiles_wide * TILE, left = rest % tiles_wide * TILE;
        int from = base, to = target_base;
#if RANK > 2
        for (int d = 0; d < RANK - 2; ++d) {
            int c = matrix / pitch[d];
            matrix -= c * pitch[d];
            from += c * reads[d];
            to += c * writes[d];
        }
#endif
        for (int i = row; i < TILE; i += ROWS)
            if (top + column < high && left + i < wide)
                tile[i * (TILE + 1) + column] = x[from + top + column + (left + i) * wide_reads];
        wait();
        for (int i = row; i < TILE; i += ROWS) {
            int outer = (top + i) / inner;
            int at = outer * outer_writes + (top + i - outer * inner) * inner_writes;
            if (top + i < high && left + column < wide)
                result[to + left + column + at] = tile[column * (TILE + 1) + i];
        }
        wait();
    }
}
