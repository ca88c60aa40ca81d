#version 310 es
// A row of the result an invocation (Cheng's version 3): the second operand is transposed first,
// the workgroup brings each of its rows to shared memory in turn, and every invocation multiplies
// it by a row of its own, WIDTH numbers a step.
#ifndef WG_X
#define WG_X 16
#endif
#ifndef WIDTH
#define WIDTH 4
#endif
#include "common/launch.glsl"
#include "matmul/operands.glsl"
#include "matmul/scalar.glsl"
#define QUADS (WIDTH / 4)
layout(local_size_x = WG_X) in;
uniform int m, n, k;
uniform int x_row, weight_row, out_row;  // numbers, multiples of 4
shared vec4 tile[WG_X * QUADS];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int row = int(INVOCATION_ID.x);
    int first = min(row, m - 1) * (x_row / 4);  // rows past the matrix repeat its last one
    int steps = (k + 3) / 4;
    for (int column = 0; column < n; ++column) {
        int start = column * (weight_row / 4);
        vec4 sum = vec4(0.0);
        for (int step = 0; step < steps; step += WG_X * QUADS) {
            for (int i = lane; i < WG_X * QUADS; i += WG_X)
                tile[i] = weight_at(start + min(step + i, steps - 1));
            memoryBarrierShared();
            barrier();
            for (int i = 0; i < WG_X * QUADS && step + i < steps; i += QUADS) {
                vec4 a[QUADS];
                for (int j = 0; j < QUADS; ++j) a[j] = x_at(first + min(step + i + j, steps - 1));
                for (int j = 0; j < QUADS; ++j)
                    if (4 * (step + i + j) < k)  // the row's padding may hold anything
                        sum += first_of(a[j], k - 4 * (step + i + j)) * tile[i + j];
            }
            memoryBarrierShared();
            barrier();
        }
        if (row < m) finish(dot(sum, vec4(1.0)), column, row * out_row + column);
    }
}
