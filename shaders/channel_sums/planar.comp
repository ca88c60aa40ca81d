#version 310 es
// Two sums of each channel, planar images: a workgroup a channel, whose LANES share the pixels.
#ifndef LANES
#define LANES 128
#endif
#ifndef HAS_DY
#define HAS_DY 0
#endif
#ifndef HAS_MEAN
#define HAS_MEAN 0
#endif
#define RESULTS 1
#define NUMBER float
#include "common/launch.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
#if HAS_DY
layout(std430, binding = 2) buffer Dy { float dy[]; };
uniform int dy_row;
#endif
#if HAS_MEAN
layout(std430, binding = 3) buffer Mean { float mean[]; };
#endif
uniform int c, inner, pixels, row, x_row, out_row, out_first;
#include "channel_sums/state.glsl"

void main() {
    int lane = int(gl_LocalInvocationID.x);
    for (int place = int(WORKGROUP_ID.y); place < row; place += int(WORKGROUP_COUNT.y)) {
        int channel = min(place, c - 1);
        State total = IDENTITY;
#if HAS_DY
        float channel_mean = 0.0;
#endif
#if HAS_MEAN
        channel_mean = mean[channel];
#endif
        for (int i = lane; i < pixels; i += LANES) {
            int image = i / inner, at = channel * inner + i - image * inner;
#if HAS_DY
            total = accumulate(total, x[image * x_row + at], dy[image * dy_row + at], channel_mean);
#else
            total = accumulate(total, x[image * x_row + at]);
#endif
        }
        total = reduce_lanes(total, lane, 0);
        if (lane > 0) continue;
#if !HAS_DY
        total = finished(total, pixels);
#endif
        result[out_first + place] = place < c ? total.first : 0.0;
        result[out_first + place + out_row] = place < c ? total.second : 0.0;
    }
}
