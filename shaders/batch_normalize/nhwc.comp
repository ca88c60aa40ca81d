#version 310 es
// Batch normalisation, channels last: RESULTS neighbouring fours of channels a workgroup, whose LANES
// share the pixels, first for the mean and the variance, then for the results.
#ifndef LANES
#define LANES 32
#endif
#ifndef RESULTS
#define RESULTS 4
#endif
// Pixels that a lane loads before it does anything with one, a multiple of 4.
#ifndef AT_ONCE
#define AT_ONCE 4
#endif
#define HAS_DY 0
#define NUMBER vec4
#include "common/launch.glsl"
layout(local_size_x = RESULTS, local_size_y = LANES) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
uniform int c, pixels;
uniform float eps;
#include "channel_sums/state.glsl"
#include <epilogue>

void main() {
    int quads = (c + 3) / 4, line = int(gl_LocalInvocationID.x), lane = int(gl_LocalInvocationID.y);
    int quad = int(WORKGROUP_ID.x) * RESULTS + line;
    int stride = LANES * quads, last = quad < quads ? pixels * quads : 0;
    int i = quad + lane * quads;
    State whole = IDENTITY;
    for (; i + (AT_ONCE - 1) * stride < last; i += AT_ONCE * stride) {
        vec4 loaded[AT_ONCE];
        for (int k = 0; k < AT_ONCE; ++k) loaded[k] = x[i + k * stride];
        for (int k = 0; k < AT_ONCE; k += 4)
            whole = accumulate(whole, loaded[k], loaded[k + 1], loaded[k + 2], loaded[k + 3]);
    }
    for (; i < last; i += stride) whole = accumulate(whole, x[i]);
    whole = finished(reduce_lanes(whole, lane, line), pixels);
    vec4 inv_std = inversesqrt(whole.second + eps);
    i = quad + lane * quads;
#if !EPILOGUE_LONG  // else the loop is kept, and what it indexes in memory
    for (; i + (AT_ONCE - 1) * stride < last; i += AT_ONCE * stride) {
        vec4 loaded[AT_ONCE];
        for (int k = 0; k < AT_ONCE; ++k) loaded[k] = x[i + k * stride];
        for (int k = 0; k < AT_ONCE; ++k) {
            int at = i + k * stride;
            result[at] = epilogue((loaded[k] - whole.first) * inv_std, at, quad);
        }
    }
#endif
    for (; i < last; i += stride)
        result[i] = epilogue((x[i] - whole.first) * inv_std, i, quad);
}
