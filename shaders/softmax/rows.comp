#version 310 es
// Softmax of rows that lie together: the maximum and the sum in one walk (Milakov and Gimelshein
// 2018, algorithm 3), the results in another. With KEPT the first walk begins with the last numbers of
// a row, so that the first ones are in registers for the second.
#ifndef LOG
#define LOG 0
#endif
#ifndef HAS_EPILOGUE
#define HAS_EPILOGUE 0
#endif
#include "common/nan.glsl"
#include "reduce/rows.glsl"
layout(std430, binding = 0) buffer X { VALUE x[]; };
layout(std430, binding = 1) buffer Out { VALUE result[]; };
#if HAS_EPILOGUE
#include <epilogue>
#endif
#define STATE vec2  // the greatest number, at least LEAST; the sum of exp(number - greatest)
// What is below an infinite maximum, or NaN, is anything: the whole row is NaN then.
vec2 join(vec2 a, vec2 b) {
    float maximum = greater(a.x, b.x);
    return vec2(maximum, a.y * exp_minus(maximum - a.x) + b.y * exp_minus(maximum - b.x));
}
#if KEPT && SUBGROUP_SIZE
#define JOINS_SUBGROUP
#define IDENTITY vec2(LEAST, 0.0)
// A number that is not finite spoils the sum, as a maximum of lanes may pass over NaN.
vec2 reduce_subgroup(vec2 own) {
    float maximum = subgroupMax(own.x);
    float sum = is_finite(own.x) ? own.y * exp_minus(maximum - own.x) : NAN;
    return vec2(maximum, subgroupAdd(sum));
}
#endif
#include "reduce/lanes.glsl"

float sum_of_exps(float maximum, float v) { return exp_minus(maximum - v); }
float sum_of_exps(float maximum, vec4 v) {
    vec4 exps = exp_minus(vec4(maximum) - v);
    return (exps.x + exps.y) + (exps.z + exps.w);
}

float finished(vec2 whole, float v) {
#if LOG
    return v - whole.x - whole.y;
#else
    return exp_minus(whole.x - v) * whole.y;
#endif
}
vec4 finished(vec2 whole, vec4 v) {
    return vec4(finished(whole, v.x), finished(whole, v.y), finished(whole, v.z), finished(whole, v.w));
}

#if KEPT
int magnitude(float v) { return floatBitsToInt(v) & 0x7fffffff; }
int magnitude(vec4 v) {
    return max(max(magnitude(v.x), magnitude(v.y)), max(magnitude(v.z), magnitude(v.w)));
}
float largest(float v) { return v; }
float largest(vec4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }

// Load the lane's numbers of a part, those beyond the row's end being its last.
void load(int first, out VALUE kept[LOADS]) {
    for (int j = 0; j < LOADS; ++j) kept[j] = x[min(first + j * LANES, last - 1)];
}

// The state extended by the first `own` numbers of a part, 1 or more. The rest repeat
// the row's last value.
vec2 extended(vec2 state, VALUE kept[LOADS], int own) {
    float maximum = state.x, sum = 0.0;
    int greatest_magnitude = 0;  // of NaN it is greater than of infinity; max may pass over NaN
    for (int j = 0; j < LOADS; ++j) {
        maximum = max(maximum, largest(kept[j]));
        greatest_magnitude = max(greatest_magnitude, magnitude(kept[j]));
    }
    maximum = greatest_magnitude > 0x7f800000 ? NAN : greater(state.x, maximum);
    for (int j = 0; j < LOADS; ++j)
        if (j < own) sum += sum_of_exps(maximum, kept[j]);
    return vec2(maximum, state.y * exp_minus(maximum - state.x) + sum);
}
#else
float greatest_of(float v) { return v; }

// The state extended by more of the row.
vec2 extended(vec2 state, VALUE a) {
    float maximum = greater(state.x, greatest_of(a));
    return vec2(maximum, state.y * exp_minus(maximum - state.x) + sum_of_exps(maximum, a));
}
vec2 extended(vec2 state, VALUE a, VALUE b, VALUE c, VALUE d) {
    float of_ab = greater(greatest_of(a), greatest_of(b)), of_cd = greater(greatest_of(c), greatest_of(d));
    float maximum = greater(state.x, greater(of_ab, of_cd));
    float sum = (sum_of_exps(maximum, a) + sum_of_exps(maximum, b)) +
                (sum_of_exps(maximum, c) + sum_of_exps(maximum, d));
    return vec2(maximum, state.y * exp_minus(maximum - state.x) + sum);
}
#endif

// Stores the number, or vec4, of the row in hand whose place in x is `i`.
void store(int i, VALUE value) {
    int at = i + out_shift;
#if HAS_EPILOGUE && WIDE
    int channel = 4 * (i - begin);
    value = vec4(epilogue(value.x, 4 * at, channel), epilogue(value.y, 4 * at + 1, channel + 1),
                 epilogue(value.z, 4 * at + 2, channel + 2), epilogue(value.w, 4 * at + 3, channel + 3));
#elif HAS_EPILOGUE
    value = epilogue(value, at, i - begin);
#endif
    result[at] = value;
}

void main() {
    int lane = int(gl_LocalInvocationID.x), line = int(gl_LocalInvocationID.y);
    for (int group = int(WORKGROUP_ID.y); group * RESULTS < rows; group += int(WORKGROUP_COUNT.y)) {
        locate_row(group * RESULTS + line);
        vec2 whole = vec2(LEAST, 0.0);
        int first = begin + lane;
#if KEPT
        VALUE kept[LOADS];
        int parts = (max(last - begin, 0) + PART - 1) / PART;
        for (int part = parts - 1; part >= 0; --part) {
            int i = first + part * PART;
            load(i, kept);
            if (i < last) whole = extended(whole, kept, (last - i + LANES - 1) / LANES);
        }
#else
        int i = first;
        for (; i + 3 * LANES < last; i += 4 * LANES)
            whole = extended(whole, x[i], x[i + LANES], x[i + 2 * LANES], x[i + 3 * LANES]);
        for (; i < last; i += LANES) whole = extended(whole, x[i]);
#endif
        whole = reduce_lanes(whole, lane, line);
        // Without a finite maximum all of the row is NaN, as differences of infinities are; the sum
        // is 0 where there was nothing but minus infinity.
        bool sound = is_finite(whole.x) && whole.y > 0.0;
        float sum = sound ? whole.y : 1.0;
#if LOG
        whole = vec2(whole.x, sound ? log(sum) : NAN);
#else
        whole = vec2(whole.x, sound ? 1.0 / sum : NAN);
#endif
#if KEPT
        for (int part = 0; part < parts; ++part) {
            int i = first + part * PART;
            if (part > 0) load(i, kept);
            for (int j = 0; j < LOADS; ++j)
                if (i + j * LANES < last) store(i + j * LANES, finished(whole, kept[j]));
        }
#else
        for (i = first; i < last; i += LANES) store(i, finished(whole, x[i]));
#endif
    }
}
