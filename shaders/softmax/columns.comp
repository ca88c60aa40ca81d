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
// Fours of a row's numbers that are loaded at once.
#ifndef FOURS
#define FOURS 1
#endif
#include "common/launch.glsl"
#include "common/nan.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int rows, extent, inner;  // rows: before the axis; inner: numbers behind it

// Four numbers of a row from that place on.
vec4 four(int at) { return vec4(x[at], x[at + inner], x[at + 2 * inner], x[at + 3 * inner]); }

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < rows * inner; i += stride) {
        int row = i / inner;
        int first = i + row * (extent - 1) * inner, last = first + extent * inner;
        // What is below an infinite maximum, or NaN, is anything: the whole row is NaN then.
        float maximum = LEAST, sum = 0.0;
        int at = first;
        for (; at + (4 * FOURS - 1) * inner < last; at += 4 * FOURS * inner) {
            vec4 v[FOURS];
            for (int k = 0; k < FOURS; ++k) v[k] = four(at + 4 * k * inner);
            float new_maximum = maximum;
            for (int k = 0; k < FOURS; ++k) new_maximum = greater(new_maximum, greatest_of(v[k]));
            vec4 exps = exp_minus(vec4(new_maximum) - v[0]);
            for (int k = 1; k < FOURS; ++k) exps += exp_minus(vec4(new_maximum) - v[k]);
            sum = sum * exp_minus(new_maximum - maximum) + ((exps.x + exps.y) + (exps.z + exps.w));
            maximum = new_maximum;
        }
        for (; at < last; at += inner) {
            float new_maximum = greater(maximum, x[at]);
            sum = sum * exp_minus(new_maximum - maximum) + exp_minus(new_maximum - x[at]);
            maximum = new_maximum;
        }
        bool sound = is_finite(maximum) && sum > 0.0;
#if LOG
        float rest = sound ? log(sum) : NAN;
#define RESULT(v) ((v) - maximum - rest)
#else
        float factor = sound ? 1.0 / sum : NAN;
#define RESULT(v) (exp_minus(maximum - (v)) * factor)
#endif
        at = first;
        for (; at + (4 * FOURS - 1) * inner < last; at += 4 * FOURS * inner) {
            vec4 v[FOURS];
            for (int k = 0; k < FOURS; ++k) v[k] = four(at + 4 * k * inner);
            for (int k = 0; k < FOURS; ++k) {
                vec4 made = RESULT(v[k]);
                int place = at + 4 * k * inner;
                result[place] = made.x;
                result[place + inner] = made.y;
                result[place + 2 * inner] = made.z;
                result[place + 3 * inner] = made.w;
            }
        }
        for (; at < last; at += inner) result[at] = RESULT(x[at]);
    }
}
