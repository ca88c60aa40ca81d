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
#define PART (TM * TN * LANES)  // what a slice has summed up
#define HALF (WG_K / 2)
shared vec4 part[HALF * PART];

void wait() {
    memoryBarrierShared();
    barrier();
}

void main() {
    int columns = (n + 3) / 4;
    int lane = int(gl_LocalInvocationID.y) * WG_X + int(gl_LocalInvocationID.x);
    int slice = int(gl_LocalInvocationID.z);
    int column = int(INVOCATION_ID.x) * TN;
    int row = int(INVOCATION_ID.y) * TM;

    // Half of the slices store their sums, the others add theirs, then half of these, and so on.
    add_up(0, row, column, slice, WG_K);
    int own = (slice & (HALF - 1)) * PART + lane;
    if (slice >= HALF)
        for (int i = 0; i < TM * TN; ++i) part[own + i * LANES] = sum[i];
    wait();
    if (slice < HALF)
        for (int i = 0; i < TM * TN; ++i) part[own + i * LANES] += sum[i];
    for (int width = HALF / 2; width > 0; width /= 2) {
        wait();
        if (slice < width)
            for (int i = 0; i < TM * TN; ++i)
                part[own + i * LANES] += part[own + width * PART + i * LANES];
    }
    wait();

    // Each invocation finishes some of the workgroup's results.
    for (int i = slice; i < TM * TN; i += WG_K) {
        int at = row + i / TN, quad = column + i % TN;
        if (at < m && quad < columns)
            finish(part[i * LANES + lane], quad, at * (out_row / 4) + out_first / 4 + quad);
    }
}
