#version 310 es
// C = A B^T for few results and a long k: a workgroup computes WG_Y TM rows by 4 WG_X columns, its
// WG_K slices each sum a part of k, and shared memory joins the parts.
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
#define TN 1
#define BATCHED 0
#include "common/launch.glsl"
#include "common/wait.glsl"
#include "matmul/operands.glsl"
#include "matmul/vector.glsl"
#include "matmul/quads.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_K) in;
#define LANES (WG_X * WG_Y)
#define RESULTS (TM * LANES)
shared vec4 part[WG_K * RESULTS];

void main() {
    int lane = int(gl_LocalInvocationID.y) * WG_X + int(gl_LocalInvocationID.x);
    int slice = int(gl_LocalInvocationID.z);
    int column = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y) * TM;

    add_up(0, row, column, slice, WG_K);
    // Rotated: other registers for the sums, see common/tile.glsl.
    for (int i = 0; i < TM; ++i) part[slice * RESULTS + i * LANES + lane] = sum[i].yzwx;
    wait();

    // Each invocation joins and finishes some of the workgroup's results. No compiler can count how
    // often the inner loop runs, and write it out: Midgard's then spills.
    if (4 * column >= n) return;
    for (int i = slice; i < min(TM, m - row); i += WG_K) {
        vec4 total = vec4(0.0);
        for (int at = i * LANES + lane; at < WG_K * RESULTS; at += RESULTS) total += part[at];
        finish(total.wxyz, column, (row + i) * (out_row / 4) + out_first / 4 + column);
    }
}
