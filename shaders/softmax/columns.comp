#version 310 es
// Softmax along an axis behind which others lie: a row an invocation, whose neighbours read numbers
// side by side. The maximum and the sum in one walk (Milakov and Gimelshein 2018, algorithm 3), the
// results in another.
#ifndef LOG
#define LOG 0
#endif
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
#include "common/nan.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int rows, extent, inner;  // rows: before the axis; inner: numbers behind it

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < rows * inner; i += stride) {
        int row = i / inner;
        int first = i + row * (extent - 1) * inner, last = first + extent * inner;
        // What is below an infinite maximum, or NaN, is anything: the whole row is NaN then.
        float most = LEAST, sum = 0.0;
        int at = first;
        for (; at + 3 * inner < last; at += 4 * inner) {
            vec4 v = vec4(x[at], x[at + inner], x[at + 2 * inner], x[at + 3 * inner]);
            float now = greater(most, greatest_of(v));
            vec4 powers = decayed(vec4(now) - v);
            sum = sum * decayed(now - most) + ((powers.x + powers.y) + (powers.z + powers.w));
            most = now;
        }
        for (; at < last; at += inner) {
            float now = greater(most, x[at]);
            sum = sum * decayed(now - most) + decayed(now - x[at]);
            most = now;
        }
        bool sound = is_finite(most) && sum > 0.0;
#if LOG
        float rest = sound ? log(sum) : NAN;
        for (at = first; at < last; at += inner) result[at] = x[at] - most - rest;
#else
        float factor = sound ? 1.0 / sum : NAN;
        for (at = first; at < last; at += inner) result[at] = decayed(most - x[at]) * factor;
#endif
    }
}
