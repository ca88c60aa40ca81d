#version 310 es
// Joins what parts of attention found, a token and a head a workgroup: sums and sums of powers by the
// powers of their greatest scores less the greatest of all.
#ifndef LANES
#define LANES 128
#endif
#ifndef ZEROS
#define ZEROS 0
#endif
#include "common/launch.glsl"
#include "common/wait.glsl"
#include "common/nan.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
uniform int heads, width, parts, x_row, out_row;
shared float shares[LANES];
shared vec4 sums[LANES];

void main() {
    int lane = int(gl_LocalInvocationID.x), head = int(WORKGROUP_ID.y), token = int(WORKGROUP_ID.z);
    int quads = width / 4, stride = quads + 1;
    int from = token * (x_row / 4) + head * parts * stride;
    float most = LEAST;
    for (int i = lane; i < parts; i += LANES) most = greater(most, x[from + i * stride + quads].x);
    shares[lane] = most;
    for (int step = LANES / 2; step > 0; step /= 2) {
        wait();
        if (lane < step) shares[lane] = greater(shares[lane], shares[lane + step]);
    }
    wait();
    most = shares[0];
    wait();
    bool there = x[from + quads].z != 0.0;
    for (int first = 0; first < quads; first += LANES) {  // more than once where a head is wide
        int count = min(quads - first, LANES), across = LANES / count;
        int quad = first + lane % count, slice = lane / count;
        vec4 sum = vec4(0.0);
        float total = 0.0;
        if (slice < across)
            for (int i = slice; i < parts; i += across) {
                int part = from + i * stride;
                vec4 found = x[part + quads];
                float factor = decayed(most - found.x);
                sum += factor * x[part + quad];
                total += factor * found.y;
            }
        sums[lane] = sum;
        shares[lane] = total;
        wait();
        if (lane < count) {
            for (int i = 1; i < across; ++i) {
                sum += sums[lane + i * count];
                total += shares[lane + i * count];
            }
            bool known = there;
#if ZEROS
            known = known && is_finite(total) && total > 0.0;
#endif
            result[(token * out_row + head * width) / 4 + quad] = known ? sum / total : vec4(0.0);
        }
        wait();
    }
}
