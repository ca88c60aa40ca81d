#version 310 es
// C = A B^T for few results and a long k: a workgroup computes WG_Y TM rows by 4 WG_X TN columns, its
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
#ifndef TN
#define TN 1
#endif
#define BATCHED 0
#include "common/launch.glsl"
#include "matmul/operands.glsl"
#include "matmul/vector.glsl"
#include "matmul/quads.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_K) in;
#define LANES (WG_X * WG_Y)
shared vec4 part[WG_K / 2 * TM * TN * LANES];

// Adds up the slices' sums in the first slice: in turns, those of one half to those of the other.
void join() {
    int lane = int(gl_LocalInvocationIndex) % LANES;
    int slice = int(gl_LocalInvocationID.z);
    for (int width = WG_K / 2; width > 0; width /= 2) {
        int first = (slice & (width - 1)) * TM * TN;
        if (slice >= width && slice < 2 * width)
            for (int i = 0; i < TM * TN; ++i) part[(first + i) * LANES + lane] = sum[i];
        memoryBarrierShared();
        barrier();
        if (slice < width)
            for (int i = 0; i < TM * TN; ++i) sum[i] += part[(first + i) * LANES + lane];
        memoryBarrierShared();
        barrier();
    }
}

void main() {
    int columns = (n + 3) / 4;
    int column = int(INVOCATION_ID.x) * TN;
    int row = int(INVOCATION_ID.y) * TM;
    add_up(0, row, column, int(gl_LocalInvocationID.z), WG_K);
    join();
    if (gl_LocalInvocationID.z > 0u) return;

    int target = row * (out_row / 4) + out_first / 4 + column;
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j)
            if (row + i < m && column + j < columns)
                finish(sum[i * TN + j], column + j, target + i * (out_row / 4) + j);
}
