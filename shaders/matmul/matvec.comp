#version 310 es
// C = act(alpha A B^T + beta C + bias) for very few rows of A: a workgroup computes ROWS results
// of one row of A, its lanes walk along k side by side, and shared memory joins their sums. The
// weights are read once, in the order in which they lie, ROWS loads in flight for each lane.
#ifndef WG_X
#define WG_X 128
#endif
#ifndef ROWS
#define ROWS 2
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_C
#define HAS_C 0
#endif
#include "common/activation.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
#if HAS_BIAS
layout(std430, binding = 3) buffer Bias { float bias[]; };
#elif HAS_C
layout(std430, binding = 3) buffer C { float c[]; };
#endif
uniform int m, n, k;
uniform int x_row, weight_row, out_row;  // floats, multiples of 4
uniform float alpha, beta;
shared float part[ROWS * WG_X];

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int first = int(gl_WorkGroupID.y) * ROWS;
    int row = int(gl_WorkGroupID.z);
    int stride = weight_row / 4;
    int start = row * (x_row / 4);
    int last = n - 1 - first;  // rows past the weights repeat the last one
    vec4 sum[ROWS];
    for (int i = 0; i < ROWS; ++i) sum[i] = vec4(0.0);
    int steps = (k + 3) / 4;
    for (int step = lane; step < steps; step += WG_X) {
        vec4 a = x[start + step];
        int rest = k - 4 * step;
        if (rest < 4)  // the row's padding may hold anything
            a = vec4(a.x, rest > 1 ? a.y : 0.0, rest > 2 ? a.z : 0.0, 0.0);
        for (int i = 0; i < ROWS; ++i)
            sum[i] += a * weight[(first + min(i, last)) * stride + step];
    }
    for (int i = 0; i < ROWS; ++i) part[i * WG_X + lane] = dot(sum[i], vec4(1.0));
    for (int width = WG_X / 2; width > 0; width /= 2) {
        memoryBarrierShared();
        barrier();
        if (lane < width)
            for (int i = 0; i < ROWS; ++i) part[i * WG_X + lane] += part[i * WG_X + lane + width];
    }
    memoryBarrierShared();
    barrier();
    if (lane < ROWS && lane <= last) {
        int target = row * out_row + first + lane;
        float value = alpha * part[lane * WG_X];
#if HAS_BIAS
        value += bias[first + lane];
#elif HAS_C
        value += beta * c[target];
#endif
        result[target] = activate(value);
    }
}
