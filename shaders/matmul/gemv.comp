#version 310 es
// C = A B^T for very few rows of A: a workgroup computes ROWS results of one row of A. Its lanes step along
// k together, and their sums are added in shared memory. The weights are read once, in their order in
// memory, with ROWS loads in flight for each lane.
#ifndef WG_X
#define WG_X 128
#endif
#ifndef ROWS
#define ROWS 2
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "matmul/operands.glsl"
#include "matmul/scalar.glsl"
layout(local_size_x = WG_X) in;
uniform int n, k;
uniform int x_row, weight_row, out_row;  // floats, multiples of 4
shared float part[ROWS * WG_X];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int first = int(WORKGROUP_ID.y) * ROWS;
    int row = int(WORKGROUP_ID.z);
    int stride = weight_row / 4;
    int start = row * (x_row / 4);
    int last = n - 1 - first;  // rows past the weights repeat the last one
    vec4 sum[ROWS];
    for (int i = 0; i < ROWS; ++i) sum[i] = vec4(0.0);
    int steps = k / 4, left = k - 4 * steps;
    for (int step = lane; step < steps; step += WG_X) {
        vec4 a = x_at(start + step);
        for (int i = 0; i < ROWS; ++i)
            sum[i] += a * weight_at((first + min(i, last)) * stride + step);
    }
    if (left > 0 && lane == steps % WG_X) {  // the rows' padding may hold anything
        vec4 a = first_of(x_at(start + steps), left);
        for (int i = 0; i < ROWS; ++i)
            sum[i] += a * first_of(weight_at((first + min(i, last)) * stride + steps), left);
    }
    for (int i = 0; i < ROWS; ++i) part[i * WG_X + lane] = dot(sum[i], vec4(1.0));
    for (int width = WG_X / 2; width > 0; width /= 2) {
        workgroup_barrier();
        if (lane < width)
            for (int i = 0; i < ROWS; ++i) part[i * WG_X + lane] += part[i * WG_X + lane + width];
    }
    workgroup_barrier();
    if (lane < ROWS && lane <= last)
        finish(part[lane * WG_X], first + lane, row * out_row + first + lane);
}
