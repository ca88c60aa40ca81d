#version 310 es
// Normalisation of contiguous rows. The first pass computes mean and variance: those of blocks, which
// are merged (Chan, Golub and LeVeque 1979). The second computes the results. With KEPT the first
// pass begins with the last values of a row, so that the first ones are in registers for the second.
#ifndef CENTRED
#define CENTRED 1
#endif
#ifndef GROUPED
#define GROUPED 0
#endif
#ifndef HAS_WEIGHT
#define HAS_WEIGHT 0
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#include "common/nan.glsl"
#include "reduce/rows.glsl"
#if GROUPED
#define PARAMETER float  // of a channel
#else
#define PARAMETER VALUE  // of each element of a row
#endif
layout(std430, binding = 0) buffer X { VALUE x[]; };
layout(std430, binding = 1) buffer Out { VALUE result[]; };
#if HAS_WEIGHT
layout(std430, binding = 2) buffer Weight { PARAMETER weight[]; };
#endif
#if HAS_BIAS
layout(std430, binding = 3) buffer Bias { PARAMETER bias[]; };
#endif
uniform float eps;
uniform int row_groups, channels, spatial;  // groups of a sample, channels of a group, numbers of one
#define STATE vec3  // count, mean, sum of the squared deviations from it

vec3 join(vec3 a, vec3 b) {
#if !CENTRED
    return a + b;
#endif
    float count = a.x + b.x;
    if (count == 0.0) return a;
    // The square of delta is not computed: it may be infinite, and 0 times infinity is NaN.
    float share = b.x / count, delta = b.y - a.y;
    return vec3(count, a.y + delta * share, a.z + b.z + delta * (a.x * share) * delta);
}
#if CENTRED && KEPT
#define JOINS_SEVERAL  // takes so many registers that Mali's compiler spills some
#endif
#if KEPT && SUBGROUP_SIZE
#define JOINS_SUBGROUP
#define IDENTITY vec3(0.0)
vec3 reduce_subgroup(vec3 own) {
    float count = subgroupAdd(own.x), mean = 0.0, squares = own.z;
#if CENTRED
    // Distances from one of the means, as sums of the means themselves would be rounded more; `joined`
    // has the same formula for states in shared memory.
    float base = subgroupMax(own.x > 0.0 ? own.y : LEAST);
    mean = base + subgroupAdd(own.x > 0.0 ? own.x * (own.y - base) : 0.0) / max(count, 1.0);
    squares += own.x * (own.y - mean) * (own.y - mean);
#endif
    return vec3(count, mean, subgroupAdd(squares));
}
#endif
#include "reduce/lanes.glsl"

#if defined(JOINS_SEVERAL) && !SUBGROUPS && LANES > 1
// Join `count` states with one division: `join` has one for each.
vec3 joined(int first, const int count, int line) {
    float base = states[first * RESULTS + line].y, count_sum = 0.0, weighted = 0.0, squares = 0.0;
    for (int i = 0; i < count; ++i) {
        vec3 one = states[(first + i) * RESULTS + line];
        count_sum += one.x;
        weighted += one.x * (one.y - base);
    }
    float mean = count_sum > 0.0 ? base + weighted / count_sum : 0.0;
    for (int i = 0; i < count; ++i) {
        vec3 one = states[(first + i) * RESULTS + line];
        squares += one.z + one.x * (one.y - mean) * (one.y - mean);
    }
    return vec3(count_sum, mean, squares);
}
#endif

float total(float v) { return v; }
float total(vec4 v) { return (v.x + v.y) + (v.z + v.w); }

// The state after one more value, or four.
vec3 accumulate(vec3 state, VALUE a) {
#if CENTRED
    float mean = total(a) * (1.0 / float(STEP));
    a -= mean;
    return join(state, vec3(float(STEP), mean, total(a * a)));
#else
    return vec3(0.0, 0.0, state.z + total(a * a));
#endif
}
vec3 accumulate(vec3 state, VALUE a, VALUE b, VALUE c, VALUE d) {
#if CENTRED
    float mean = ((total(a) + total(b)) + (total(c) + total(d))) * (0.25 / float(STEP));
    a -= mean;
    b -= mean;
    c -= mean;
    d -= mean;
    float squares = (total(a * a) + total(b * b)) + (total(c * c) + total(d * d));
    return join(state, vec3(4.0 * float(STEP), mean, squares));
#else
    float squares = (total(a * a) + total(b * b)) + (total(c * c) + total(d * d));
    return vec3(0.0, 0.0, state.z + squares);
#endif
}

#if GROUPED
// The channel of element `i` of row `row`.
int channel(int row, int i) {
    return row % row_groups * channels + i / spatial;
}
#if WIDE
// One for all four where channels are whole quads.
#define PARAMETER_AT(p, row, i) (spatial % 4 == 0 ? vec4(p[channel(row, 4 * (i))]) : \
    vec4(p[channel(row, 4 * (i))], p[channel(row, 4 * (i) + 1)], \
         p[channel(row, 4 * (i) + 2)], p[channel(row, 4 * (i) + 3)]))
#else
#define PARAMETER_AT(p, row, i) p[channel(row, i)]
#endif
#else
#define PARAMETER_AT(p, row, i) p[i]
#endif

// Store the result of element `i`.
void finish(int i, VALUE value, int row, float mean, float scale) {
    value = (value - mean) * scale;
#if HAS_WEIGHT
    value *= PARAMETER_AT(weight, row, i - begin);
#endif
#if HAS_BIAS
    value += PARAMETER_AT(bias, row, i - begin);
#endif
    result[i + out_shift] = value;
}

#if KEPT
// Load the lane's values of a part, those beyond the row's end being its last.
void load(int first, out VALUE kept[LOADS]) {
    for (int j = 0; j < LOADS; ++j) kept[j] = x[min(first + j * LANES, last - 1)];
}

// The state of the first `own` values of a part, 1 or more.
vec3 state_of(VALUE kept[LOADS], int own) {
    float mean = 0.0, squares = 0.0;
#if CENTRED
    for (int j = 0; j < LOADS; ++j) mean += j < own ? total(kept[j]) : 0.0;
    mean /= float(own * STEP);
#endif
    for (int j = 0; j < LOADS; ++j) {
        VALUE a = kept[j] - mean;
        squares += j < own ? total(a * a) : 0.0;
    }
    return vec3(float(own * STEP), mean, squares);
}
#endif

void main() {
    int lane = int(gl_LocalInvocationID.x), line = int(gl_LocalInvocationID.y);
    for (int group = int(WORKGROUP_ID.y); group * RESULTS < rows; group += int(WORKGROUP_COUNT.y)) {
        int row = group * RESULTS + line;
        locate_row(row);
        int first = begin + lane;
        vec3 row_state = vec3(0.0);
#if KEPT
        VALUE kept[LOADS];
        int parts = (max(last - begin, 0) + PART - 1) / PART;
        for (int part = parts - 1; part >= 0; --part) {
            int i = first + part * PART;
            load(i, kept);
            if (i >= last) continue;
            vec3 state = state_of(kept, min((last - i + LANES - 1) / LANES, LOADS));
            row_state = row_state.x > 0.0 ? join(row_state, state) : state;
        }
#else
        int i = first;
        for (; i + 3 * LANES < last; i += 4 * LANES)
            row_state = accumulate(row_state, x[i], x[i + LANES], x[i + 2 * LANES], x[i + 3 * LANES]);
        for (; i < last; i += LANES) row_state = accumulate(row_state, x[i]);
#endif
        row_state = reduce_lanes(row_state, lane, line);
        float variance = row_state.z / float(extent) + eps;
        // GLSL leaves the square root of numbers that are not finite open.
        float scale = is_nan(variance) ? variance : is_finite(variance) ? 1.0 / sqrt(variance) : 0.0;
#if KEPT
        for (int part = 0; part < parts; ++part) {
            int i = first + part * PART;
            if (part > 0) load(i, kept);
            for (int j = 0; j < LOADS; ++j)
                if (i + j * LANES < last) finish(i + j * LANES, kept[j], row, row_state.y, scale);
        }
#else
        for (i = first; i < last; i += LANES) finish(i, x[i], row, row_state.y, scale);
#endif
    }
}
