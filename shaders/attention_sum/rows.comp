#version 310 es
// Merges parts of attention (flash decoding), a token and a head a workgroup. Of each part there are a
// sum of values by weights, the maximum of its scores and the sum of its weights exp(score - maximum);
// both sums are rescaled to the maximum of all parts.
#ifndef LANES
#define LANES 128
#endif
#ifndef ZEROS
#define ZEROS 0
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "common/nan.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
uniform int heads, width, parts, x_row, out_row;
shared float scratch[LANES];
shared vec4 sums[LANES];

void main() {
    int lane = int(gl_LocalInvocationID.x), head = int(WORKGROUP_ID.y), token = int(WORKGROUP_ID.z);
    int quads = width / 4, stride = quads + 1;
    int from = token * (x_row / 4) + head * parts * stride;
    float maximum = LEAST;
    for (int i = lane; i < parts; i += LANES) maximum = greater(maximum, x[from + i * stride + quads].x);
    scratch[lane] = maximum;
    for (int step = LANES / 2; step > 0; step /= 2) {
        workgroup_barrier();
        if (lane < step) scratch[lane] = greater(scratch[lane], scratch[lane + step]);
    }
    workgroup_barrier();
    maximum = scratch[0];
    workgroup_barrier();
    bool is_valid = x[from + quads].z != 0.0;
    for (int first = 0; first < quads; first += LANES) {  // more than once where a head is wide
        int count = min(quads - first, LANES), across = LANES / count;
        int quad = first + lane % count, slice = lane / count;
        vec4 sum = vec4(0.0);
        float weight_sum = 0.0;
        if (slice < across)
            for (int i = slice; i < parts; i += across) {
                int part = from + i * stride;
                vec4 found = x[part + quads];
                float rescale = exp_minus(maximum - found.x);
                sum += rescale * x[part + quad];
                weight_sum += rescale * found.y;
            }
        sums[lane] = sum;
        scratch[lane] = weight_sum;
        workgroup_barrier();
        if (lane < count) {
            for (int i = 1; i < across; ++i) {
                sum += sums[lane + i * count];
                weight_sum += scratch[lane + i * count];
            }
            bool has_softmax = is_valid;
#if ZEROS
            has_softmax = has_softmax && is_finite(weight_sum) && weight_sum > 0.0;
#endif
            int to = (token * out_row + head * width) / 4 + quad;
            result[to] = has_softmax ? sum / weight_sum : vec4(0.0);
        }
        workgroup_barrier();
    }
}
