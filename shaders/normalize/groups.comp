#version 310 es
// Normalisation of groups of channels of planar images, which are contiguous. The first KEPT numbers of
// each lane are loaded at once and stay in registers: for the mean, then for the sums of deviations
// from it and of their squares, then for the results.
#ifndef LANES
#define LANES 512
#endif
#ifndef RESULTS
#define RESULTS 1
#endif
#ifndef KEPT
#define KEPT 32
#endif
#ifndef WIDE
#define WIDE 1
#endif
#ifndef HAS_WEIGHT
#define HAS_WEIGHT 0
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#include "common/nan.glsl"
#include "reduce/rows.glsl"
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
#if HAS_WEIGHT
layout(std430, binding = 2) buffer Weight { float weight[]; };
#endif
#if HAS_BIAS
layout(std430, binding = 3) buffer Bias { float bias[]; };
#endif
uniform float eps;
uniform int row_groups, channels, spatial;  // groups of a sample, channels of a group, numbers of one
#define STATE vec2
vec2 join(vec2 a, vec2 b) { return a + b; }
#include "reduce/lanes.glsl"

float total(vec4 v) { return (v.x + v.y) + (v.z + v.w); }

#if HAS_WEIGHT || HAS_BIAS
int first_channel;  // of the current row
// The parameters of elements 4 i to 4 i + 3 of the row: one for all where channels are whole quads.
#define PARAMETERS(p, i) (spatial % 4 == 0 ? vec4(p[first_channel + 4 * (i) / spatial]) : \
    vec4(p[first_channel + 4 * (i) / spatial], p[first_channel + (4 * (i) + 1) / spatial], \
         p[first_channel + (4 * (i) + 2) / spatial], p[first_channel + (4 * (i) + 3) / spatial]))
#endif

void finish(int i, vec4 deviation, float scale) {
    vec4 value = deviation * scale;
#if HAS_WEIGHT
    value *= PARAMETERS(weight, i - begin);
#endif
#if HAS_BIAS
    value += PARAMETERS(bias, i - begin);
#endif
    result[i + out_shift] = value;
}

void main() {
    int lane = int(gl_LocalInvocationID.x);
    float share = 1.0 / float(extent);
    for (int row = int(WORKGROUP_ID.y); row < rows; row += int(WORKGROUP_COUNT.y)) {
        locate_row(row);
#if HAS_WEIGHT || HAS_BIAS
        first_channel = row % row_groups * channels;
#endif
        int first = begin + lane, tail = first + PART;
        vec4 kept[LOADS];
        for (int j = 0; j < LOADS; ++j) kept[j] = x[min(first + j * LANES, last - 1)];
        vec4 sum = vec4(0.0);
        for (int j = 0; j < LOADS; ++j) sum += first + j * LANES < last ? kept[j] : vec4(0.0);
        for (int i = tail; i < last; i += LANES) sum += x[i];
        float mean = reduce_lanes(vec2(total(sum), 0.0), lane, 0).x * share;
        vec2 state = vec2(0.0);
        for (int j = 0; j < LOADS; ++j) {
            kept[j] -= mean;
            if (first + j * LANES < last) state += vec2(total(kept[j]), total(kept[j] * kept[j]));
        }
        for (int i = tail; i < last; i += LANES) {
            vec4 deviation = x[i] - mean;
            state += vec2(total(deviation), total(deviation * deviation));
        }
        state = reduce_lanes(state, lane, 0) * share;
        // The rounding error of the mean; it is ignored where the squares overflow.
        float correction = is_finite(state.y) ? state.x : 0.0;
        float variance = max(state.y - correction * correction, 0.0) + eps;
        variance = is_nan(state.y) ? state.y : variance;
        // GLSL leaves the square root of numbers that are not finite open.
        float scale = is_nan(variance) ? variance : is_finite(variance) ? 1.0 / sqrt(variance) : 0.0;
        for (int j = 0; j < LOADS; ++j)
            if (first + j * LANES < last) finish(first + j * LANES, kept[j] - correction, scale);
        for (int i = tail; i < last; i += LANES) finish(i, x[i] - mean - correction, scale);
    }
}
