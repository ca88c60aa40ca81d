#version 310 es
// Weighted sums of few places along an axis: one result an invocation, or four neighbouring ones.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef FOURS
#define FOURS 0
#endif
#if FOURS
#define NUMBER vec4
#define INNER (inner / 4)
#else
#define NUMBER float
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { NUMBER x[]; };
layout(std430, binding = 1) buffer Index { int index[]; };
layout(std430, binding = 2) buffer Weight { float weight[]; };
layout(std430, binding = 3) buffer Out { NUMBER result[]; };
#define X(i) x[i]
#define INDEX(i) index[i]
#define WEIGHT(i) weight[i]
#include "resample/sum.glsl"
uniform int sums;

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < sums; i += stride) result[i] = sum_at(i);
}
