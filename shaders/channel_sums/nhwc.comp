#version 310 es
// Two sums of each channel, channels last, or of each column of a matrix: RESULTS neighbouring fours of
// channels a workgroup, whose LANES share the pixels, or those of a part.
#ifndef LANES
#define LANES 32
#endif
#ifndef RESULTS
#define RESULTS 4
#endif
// Pixels that a lane loads before it adds any, a multiple of 4.
#ifndef AT_ONCE
#define AT_ONCE 4
#endif
#ifndef HAS_DY
#define HAS_DY 0
#endif
#ifndef HAS_MEAN
#define HAS_MEAN 0
#endif
#ifndef WHOLE
#define WHOLE 1
#endif
#define NUMBER vec4
#include "common/launch.glsl"
#include "common/first_of.glsl"
layout(local_size_x = RESULTS, local_size_y = LANES) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
#if HAS_DY
layout(std430, binding = 2) buffer Dy { vec4 dy[]; };
#endif
#if HAS_MEAN
layout(std430, binding = 3) buffer Mean { float mean[]; };
#endif
uniform int c, chunk, row, out_row, out_first;  // chunk: pixels of a part
#include "channel_sums/state.glsl"

void main() {
    int quads = (c + 3) / 4, line = int(gl_LocalInvocationID.x), lane = int(gl_LocalInvocationID.y);
    int quad = int(WORKGROUP_ID.x) * RESULTS + line;
    int part = int(WORKGROUP_ID.z), stride = LANES * quads, last = (part + 1) * chunk * quads;
    int i = min(quad, quads - 1) + (part * chunk + lane) * quads;
    State total = IDENTITY;
#if HAS_DY
    vec4 channel_mean = vec4(0.0);
#if HAS_MEAN
    for (int k = 0; k < 4; ++k) channel_mean[k] = mean[min(quad * 4 + k, c - 1)];
#endif
    for (; i + (AT_ONCE - 1) * stride < last; i += AT_ONCE * stride) {
        vec4 x_values[AT_ONCE], dy_values[AT_ONCE];
        for (int k = 0; k < AT_ONCE; ++k) {
            x_values[k] = x[i + k * stride];
            dy_values[k] = dy[i + k * stride];
        }
        for (int k = 0; k < AT_ONCE; ++k)
            total = accumulate(total, x_values[k], dy_values[k], channel_mean);
    }
    for (; i < last; i += stride) total = accumulate(total, x[i], dy[i], channel_mean);
#else
    for (; i + (AT_ONCE - 1) * stride < last; i += AT_ONCE * stride) {
        vec4 x_values[AT_ONCE];
        for (int k = 0; k < AT_ONCE; ++k) x_values[k] = x[i + k * stride];
        for (int k = 0; k < AT_ONCE; k += 4)
            total = accumulate(total, x_values[k], x_values[k + 1], x_values[k + 2], x_values[k + 3]);
    }
    for (; i < last; i += stride) total = accumulate(total, x[i]);
#endif
    total = reduce_lanes(total, lane, line);
    if (lane > 0 || quad * 4 >= row) return;
#if !HAS_DY
    total = finished(total, chunk);
#endif
    int count = clamp(c - quad * 4, 0, 4);
    int place = (out_first + part * out_row) / 4 + quad;
    result[place] = first_of(total.first, count);
    // The two rows of a part are one row of the matrix of all parts.
    result[place + (WHOLE == 1 ? out_row : row) / 4] = first_of(total.second, count);
}
