#version 310 es
// The gradient of a batch normalisation, planar images: a workgroup a channel, whose LANES share the
// pixels, first for the two sums, then for the results.
#ifndef LANES
#define LANES 128
#endif
#define RESULTS 1
#define HAS_DY 1
#define NUMBER float
#include "common/launch.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer Dy { float dy[]; };
layout(std430, binding = 1) buffer X { float x[]; };
layout(std430, binding = 2) buffer Mean { float mean[]; };
layout(std430, binding = 3) buffer Variance { float variance[]; };
layout(std430, binding = 4) buffer Out { float result[]; };
uniform int c, inner, pixels, dy_row, x_row, out_row;
uniform float eps;
#include "channel_sums/state.glsl"
#include <epilogue>

void main() {
    int lane = int(gl_LocalInvocationID.x);
    for (int channel = int(WORKGROUP_ID.y); channel < c; channel += int(WORKGROUP_COUNT.y)) {
        float channel_mean = mean[channel], inv_std = inversesqrt(variance[channel] + eps);
        State whole = IDENTITY;
        for (int i = lane; i < pixels; i += LANES) {
            int image = i / inner, at = channel * inner + i - image * inner;
            whole = accumulate(whole, x[image * x_row + at], dy[image * dy_row + at], channel_mean);
        }
        whole = reduce_lanes(whole, lane, 0);
        float total = whole.first / float(pixels);
        float projection = whole.second / float(pixels) * inv_std * inv_std;
        for (int i = lane; i < pixels; i += LANES) {
            int image = i / inner, at = channel * inner + i - image * inner;
            int place = image * out_row + at;
            float centred = x[image * x_row + at] - channel_mean;
            float value = dy[image * dy_row + at] - total - projection * centred;
            result[place] = epilogue(value * inv_std, place, channel);
        }
    }
}
