#version 310 es
// Weighted sums of a few elements along an axis: one result an invocation, or four neighbouring ones
// across the axis (FOURS) or along it (ALONG).
#ifndef WG_X
#define WG_X 64
#endif
#ifndef FOURS
#define FOURS 0
#endif
#ifndef ALONG
#define ALONG 0
#endif
#if FOURS
#define NUMBER vec4
#define INNER (inner / 4)
#else
#define NUMBER float
#endif
#if ALONG
#define RESULT vec4
#define PLACES ivec4
#else
#define RESULT NUMBER
#define PLACES int
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { NUMBER x[]; };
layout(std430, binding = 1) buffer Index { PLACES index[]; };
#if ALONG
layout(std430, binding = 2) buffer Weight { vec4 weight[]; };
#else
layout(std430, binding = 2) buffer Weight { float weight[]; };
#endif
layout(std430, binding = 3) buffer Out { RESULT result[]; };
uniform int sums;

#if ALONG
uniform int taps, count, extent;

vec4 sum_at(int i) {
    int quads = count / 4, row = i / quads;
    int place = i - row * quads, first = row * extent;
    vec4 sum = vec4(0.0);
    for (int tap = 0; tap < taps; ++tap) {
        int at = tap * quads + place;
        ivec4 sources = clamp(index[at], 0, extent - 1) + first;
        sum += weight[at] * vec4(x[sources.x], x[sources.y], x[sources.z], x[sources.w]);
    }
    return sum;
}
#else
#define X(i) x[i]
#define INDEX(i) index[i]
#define WEIGHT(i) weight[i]
#include "resample/sum.glsl"
#endif

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < sums; i += stride) result[i] = sum_at(i);
}
