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
#include "common/launch.glsl"
#include "matmul/operands.glsl"
#include "matmul/vector.glsl"
layout(local_size_x = WG_X, local_size_y = 1, local_size_z = WG_K) in;
uniform int m, n, k;
uniform int x_row, weight_rows, out_row;  // floats, multiples of 4
shared vec4 part[WG_K * TM * WG_X];

void main() {
    int columns = (n + 3) / 4;
    int lane = int(gl_LocalInvocationID.x);
    int slice = int(gl_LocalInvocationID.z);
    int column = min(int(INVOCATION_ID.x), columns - 1);
    int row = int(WORKGROUP_ID.y) * TM;

    vec4 sum[TM];
    for (int i = 0; i < TM; ++i) sum[i] = vec4(0.0);
    int stride = x_row / 4;
    int first = row * stride;
    int last = m - 1 - row;  // rows past the matrix repeat its last one
    int steps = (k + 3) / 4;
    for (int step = slice; step < steps; step += WG_K) {
        vec4 a[TM];
        for (int i = 0; i < TM; ++i) a[i] = x_at(first + min(i, last) * stride + step);
        if (4 * step + 4 > k)  // the row's padding may hold anything
            for (int i = 0; i < TM; ++i) a[i] = first_of(a[i], k - 4 * step);
        int tile = (step * (weight_rows / 4) + column) * 4;
        for (int l = 0; l < 4; ++l) {
            vec4 b = weight_at(tile + l);
            for (int i = 0; i < TM; ++i) sum[i] += a[i][l] * b;
        }
    }
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
            finish(part[i * WG_X + lane], column, (row + i) * (out_row / 4) + column);
}
