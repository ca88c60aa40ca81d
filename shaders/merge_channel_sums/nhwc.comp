#version 310 es
// Sums of each channel, or means and variances, from those of parts of the pixels: RESULTS neighbouring
// fours of channels a workgroup, whose LANES share the parts.
#ifndef LANES
#define LANES 16
#endif
#ifndef RESULTS
#define RESULTS 4
#endif
#ifndef MOMENTS
#define MOMENTS 1
#endif
#define HAS_DY (1 - MOMENTS)
#define NUMBER vec4
#include "common/launch.glsl"
layout(local_size_x = RESULTS, local_size_y = LANES) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
uniform int parts, row, out_row, out_first;
#include "channel_sums/state.glsl"

void main() {
    int line = int(gl_LocalInvocationID.x), lane = int(gl_LocalInvocationID.y);
    int quads = row / 4, quad = int(WORKGROUP_ID.x) * RESULTS + line;
    State whole = IDENTITY;
    for (int part = lane; part < parts; part += LANES) {
        int at = part * 2 * quads + min(quad, quads - 1);
        whole = join(whole, State(x[at], x[at + quads], 1.0));
    }
    whole = reduce_lanes(whole, lane, line);
    if (lane > 0 || quad >= quads) return;
#if MOMENTS
    whole = finished(whole, parts);
#endif
    result[out_first / 4 + quad] = whole.first;
    result[out_first / 4 + out_row / 4 + quad] = whole.second;
}
