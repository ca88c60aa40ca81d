#version 310 es
// Two sums of each channel, channels last, or of each column of a matrix: RESULTS neighbouring fours of
// channels a workgroup, whose LANES share the pixels.
#ifndef LANES
#define LANES 32
#endif
#ifndef RESULTS
#define RESULTS 4
#endif
#ifndef HAS_DY
#define HAS_DY 0
#endif
#ifndef HAS_MEAN
#define HAS_MEAN 0
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
uniform int c, pixels, row, out_row, out_first;
#include "channel_sums/state.glsl"

void main() {
    int quads = (c + 3) / 4, line = int(gl_LocalInvocationID.x), lane = int(gl_LocalInvocationID.y);
    int quad = int(WORKGROUP_ID.x) * RESULTS + line;
    int apart = LANES * quads, last = pixels * quads;
    int i = min(quad, quads - 1) + lane * quads;
    State whole = IDENTITY;
#if HAS_DY
    vec4 middle = vec4(0.0);
#if HAS_MEAN
    for (int k = 0; k < 4; ++k) middle[k] = mean[min(quad * 4 + k, c - 1)];
#endif
    for (; i + 3 * apart < last; i += 4 * apart) {
        vec4 x0 = x[i], x1 = x[i + apart], x2 = x[i + 2 * apart], x3 = x[i + 3 * apart];
        vec4 d0 = dy[i], d1 = dy[i + apart], d2 = dy[i + 2 * apart], d3 = dy[i + 3 * apart];
        whole = with(with(whole, x0, d0, middle), x1, d1, middle);
        whole = with(with(whole, x2, d2, middle), x3, d3, middle);
    }
    for (; i < last; i += apart) whole = with(whole, x[i], dy[i], middle);
#else
    for (; i + 3 * apart < last; i += 4 * apart)
        whole = with(whole, x[i], x[i + apart], x[i + 2 * apart], x[i + 3 * apart]);
    for (; i < last; i += apart) whole = with(whole, x[i]);
#endif
    whole = meet(whole, lane, line);
    if (lane > 0 || quad * 4 >= row) return;
#if !HAS_DY
    whole = finished(whole, pixels);
#endif
    int count = clamp(c - quad * 4, 0, 4);
    int place = out_first / 4 + quad;
    result[place] = first_of(whole.first, count);
    result[place + out_row / 4] = first_of(whole.second, count);
}
