#version 310 es
// The gradient of a batch normalisation, channels last: RESULTS neighbouring fours of channels a
// workgroup, whose LANES share the pixels, first for the two sums, then for the results.
#ifndef LANES
#define LANES 32
#endif
#ifndef RESULTS
#define RESULTS 4
#endif
// Pixels that a lane loads before it does anything with one.
#ifndef AT_ONCE
#define AT_ONCE 4
#endif
#define HAS_DY 1
#define NUMBER vec4
#include "common/launch.glsl"
layout(local_size_x = RESULTS, local_size_y = LANES) in;
layout(std430, binding = 0) buffer Dy { vec4 dy[]; };
layout(std430, binding = 1) buffer X { vec4 x[]; };
layout(std430, binding = 2) buffer Mean { float mean[]; };
layout(std430, binding = 3) buffer Variance { float variance[]; };
layout(std430, binding = 4) buffer Out { vec4 result[]; };
uniform int c, pixels;
uniform float eps;
#include "channel_sums/state.glsl"
#include <epilogue>

void main() {
    int quads = (c + 3) / 4, line = int(gl_LocalInvocationID.x), lane = int(gl_LocalInvocationID.y);
    int quad = int(WORKGROUP_ID.x) * RESULTS + line;
    int stride = LANES * quads, last = quad < quads ? pixels * quads : 0;
    vec4 channel_mean, inv_std;
    for (int k = 0; k < 4; ++k) {
        int channel = min(quad * 4 + k, c - 1);
        channel_mean[k] = mean[channel];
        inv_std[k] = inversesqrt(variance[channel] + eps);
    }
    State whole = IDENTITY;
    int i = quad + lane * quads;
    for (; i + (AT_ONCE - 1) * stride < last; i += AT_ONCE * stride) {
        vec4 loaded[AT_ONCE], loaded_dy[AT_ONCE];
        for (int k = 0; k < AT_ONCE; ++k) {
            loaded[k] = x[i + k * stride];
            loaded_dy[k] = dy[i + k * stride];
        }
        for (int k = 0; k < AT_ONCE; ++k)
            whole = accumulate(whole, loaded[k], loaded_dy[k], channel_mean);
    }
    for (; i < last; i += stride) whole = accumulate(whole, x[i], dy[i], channel_mean);
    whole = reduce_lanes(whole, lane, line);
    vec4 total = whole.first / float(pixels);
    vec4 projection = whole.second / float(pixels) * inv_std * inv_std;
    i = quad + lane * quads;
#if !EPILOGUE_LONG  // else the loop is kept, and what it indexes in memory
    for (; i + (AT_ONCE - 1) * stride < last; i += AT_ONCE * stride) {
        vec4 loaded[AT_ONCE], loaded_dy[AT_ONCE];
        for (int k = 0; k < AT_ONCE; ++k) {
            loaded[k] = x[i + k * stride];
            loaded_dy[k] = dy[i + k * stride];
        }
        for (int k = 0; k < AT_ONCE; ++k) {
            int at = i + k * stride;
            vec4 value = loaded_dy[k] - total - projection * (loaded[k] - channel_mean);
            result[at] = epilogue(value * inv_std, at, quad);
        }
    }
#endif
    for (; i < last; i += stride)
        result[i] = epilogue((dy[i] - total - projection * (x[i] - channel_mean)) * inv_std, i, quad);
}
