#version 310 es
// C = A B^T of texels: TM rows by 4 TN columns an invocation, as gemm_blocked. All weights of a step and a
// quad of columns are loaded before they are multiplied, so that each sum is loaded and stored once a step
// where registers are few. A CPU fetches a texel for all its lanes several times as fast as it loads from a
// buffer, where it checks the bounds for each lane. FLAT: for batches of small matrices.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef TM
#define TM 8
#endif
#ifndef TN
#define TN 2
#endif
#ifndef BATCHED
#define BATCHED 0
#endif
#ifndef FLAT
#define FLAT 0
#endif
#ifndef RAGGED
#define RAGGED 1
#endif
#include "common/launch.glsl"
#include "matmul/texels.glsl"
#include "matmul/vector.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
uniform int m, x_first, out_row;
#if FLAT
#include "matmul/flat.glsl"
#endif

void main() {
    int columns = (n + 3) / 4;
#if FLAT
    ivec3 place = flat_place(int(INVOCATION_ID.x), columns, m, TN, TM);
    int matrix = place.x, row = place.y, column = place.z;
    if (matrix >= batch) return;
#else
#if BATCHED
    int matrix = int(WORKGROUP_ID.z);
#else
    const int matrix = 0;
#endif
    int column = int(INVOCATION_ID.x) * TN;
    int row = int(INVOCATION_ID.y) * TM;
    if (row >= m || column >= columns) return;
#endif

    // Rows and columns past the last one repeat it.
    int first = matrix * m + row, last = m - 1 - row;
    int steps = (k + 3) / 4;
    int start[TM];
    for (int i = 0; i < TM; ++i) start[i] = x_first / 4 + (first + min(i, last)) * (x_row / 4);
    vec4 sum[TM * TN];
    for (int i = 0; i < TM * TN; ++i) sum[i] = vec4(0.0);
    for (int step = 0; step < steps; ++step) {
        int left = RAGGED == 1 ? k - 4 * step : 4;
        vec4 a[TM];
        for (int i = 0; i < TM; ++i) a[i] = texel(x, start[i] + step);
#if RAGGED  // the row's padding may hold anything
        for (int i = 0; i < TM; ++i) a[i] = first_of(a[i], left);
#endif
        for (int j = 0; j < TN; ++j) {
            mat4 weights = weights_of(matrix, min(column + j, columns - 1), step, left);
            for (int i = 0; i < TM; ++i) sum[i * TN + j] += weights * a[i];
        }
    }
    vec4 totals[TM * TN];  // a copy: Mesa does not unroll loops of long epilogues, and spills what they index
    for (int i = 0; i < TM * TN; ++i) totals[i] = sum[i];
    int target = out_first / 4 + first * (out_row / 4) + column;
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j)
            if (i <= last && column + j < columns)
                finish(totals[i * TN + j], column + j, target + i * (out_row / 4) + j);
}
