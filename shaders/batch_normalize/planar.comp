#version 310 es
// Batch normalisation, planar images: a workgroup a channel, whose LANES share the pixels, first for
// the mean and the variance, then for the results.
#ifndef LANES
#define LANES 128
#endif
#define RESULTS 1
#define HAS_DY 0
#define NUMBER float
#include "common/launch.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int c, inner, pixels, x_row, out_row;
uniform float eps;
#include "channel_sums/state.glsl"
#include <epilogue>

void main() {
    int lane = int(gl_LocalInvocationID.x);
    for (int channel = int(WORKGROUP_ID.y); channel < c; channel += int(WORKGROUP_COUNT.y)) {
        State whole = IDENTITY;
        for (int i = lane; i < pixels; i += LANES) {
            int image = i / inner, at = channel * inner + i - image * inner;
            whole = accumulate(whole, x[image * x_row + at]);
        }
        whole = finished(reduce_lanes(whole, lane, 0), pixels);
        float inv_std = inversesqrt(whole.second + eps);
        for (int i = lane; i < pixels; i += LANES) {
            int image = i / inner, at = channel * inner + i - image * inner;
            int place = image * out_row + at;
            result[place] = epilogue((x[image * x_row + at] - whole.first) * inv_std, place, channel);
        }
    }
}
