#version 310 es
// C = A B^T for few results and a long k: a workgroup computes WG_Y TM rows by 4 WG_X columns; each of
// its WG_K slices sums a part of k, and the partial sums are added in shared memory. With CENTRED the
// rows of x are normalised (normed_matmul): each workgroup first finds the mean and the deviation of its
// rows.
#ifndef WG_X
#define WG_X 4
#endif
#ifndef WG_Y
#define WG_Y 1
#endif
#ifndef WG_K
#define WG_K 16
#endif
#ifndef TM
#define TM 2
#endif
#ifndef CENTRED
#define CENTRED 0
#endif
#define TN 1
#define BATCHED 0
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "matmul/operands.glsl"
#include "matmul/vector.glsl"
#include "matmul/quads.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_K) in;
#define LANES (WG_X * WG_Y)
#define RESULTS (TM * LANES)
shared vec4 part[WG_K * RESULTS];
#if CENTRED
#define CENTRED_ROWS (WG_Y * TM)
#define ROW_INVOCATIONS (LANES * WG_K)
#define ROW_LANES (WG_X * WG_K < 16 ? WG_X * WG_K : 16)
#define STATE(i) part[i].xyz
#define SET_STATE(i, v) part[i].xyz = (v)
#include "matmul/centred_rows.glsl"
#endif

void main() {
    int lane = int(gl_LocalInvocationID.y) * WG_X + int(gl_LocalInvocationID.x);
    int slice = int(gl_LocalInvocationID.z);
    int column = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y) * TM;
#if CENTRED
    int first = int(gl_LocalInvocationID.y) * TM;  // of the workgroup's rows
    find_row_norms(int(gl_LocalInvocationIndex), row - first, X_BEGIN);
    for (int i = 0; i < TM; ++i) own_norms[i] = row_norms[first + i];
#endif

    accumulate(0, row, column, slice, WG_K);
    // Rotated: other registers for the sums, see common/tile.glsl.
    for (int i = 0; i < TM; ++i) part[slice * RESULTS + i * LANES + lane] = sum[i].yzwx;
    workgroup_barrier();

    // Each invocation adds and finishes some of the workgroup's results. The trip count of the inner loop
    // is not constant, so that no compiler unrolls it: Midgard's would spill.
    if (4 * column >= n) return;
    for (int i = slice; i < min(TM, m - row); i += WG_K) {
        vec4 total = vec4(0.0);
        for (int j = i * LANES + lane; j < WG_K * RESULTS; j += RESULTS) total += part[j];
        finish(total.wxyz, column, (row + i) * (out_row / 4) + out_first / 4 + column);
    }
}
