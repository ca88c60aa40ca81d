#version 310 es
// C = A B^T for few results and a long k: a workgroup computes TM rows
// by 4 WG_X columns, its WG_K slices each sum a part of k, and shared memory joins the parts.
#ifndef WG_X
#define WG_X 4
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
#include "matmul/operands.glsl"
#include "matmul/vector.glsl"
#include "matmul/quads.glsl"
layout(local_size_x = WG_X, local_size_y = 1, local_size_z = WG_K) in;
shared vec4 part[WG_K * TM * WG_X];

void main() {
    int columns = (n + 3) / 4;
    int lane = int(gl_LocalInvocationID.x);
    int slice = int(gl_LocalInvocationID.z);
    int column = min(int(INVOCATION_ID.x), columns - 1);
    int row = int(WORKGROUP_ID.y) * TM;

    add_up(0, row, column, slice, WG_K);
    for (int i = 0; i < TM; ++i) part[(slice * TM + i) * WG_X + lane] = sum[i];
    for (int width = WG_K / 2; width > 0; width /= 2) {
        memoryBarrierShared();
        barrier();
        if (slice < width)
            for (int i = 0; i < TM; ++i)
                part[(slice * TM + i) * WG_X + lane] += part[((slice + width) * TM + i) * WG_X + lane];
    }
    memoryBarrierShared();
    barrier();

    // Each invocation finishes some of the workgroup's results.
    for (int i = slice; i < TM; i += WG_K)
        if (row + i < m && int(INVOCATION_ID.x) < columns)
            finish(part[i * WG_X + lane], column, (row + i) * (out_row / 4) + out_first / 4 + column);
}
