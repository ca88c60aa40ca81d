#version 310 es
// Sampling an index of each row of logits by their probabilities, a workgroup for a row. Nothing is
// sorted: the least logit that may be drawn is determined two bits at a time, by the counts of the
// logits that are at least as great (for top_k) or the sums of their exponentials (for top_p).
#ifndef LANES
#define LANES 128
#endif
#ifndef FETCHES
#define FETCHES 4
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "common/nan.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Rules { float rules[]; };
layout(std430, binding = 2) buffer Random { float random[]; };
layout(std430, binding = 3) buffer Out { int result[]; };
uniform int rows, n, x_row;
shared vec4 scratch[LANES];
int lane, from;  // this invocation; the row's first vec4

// Four logits of the row; negative infinity behind its end.
vec4 logits(int quad) {
    vec4 found = x[from + quad];
    int left = n - 4 * quad;
    return left < 4 ? mix(vec4(uintBitsToFloat(0xff800000u)), found, lessThan(ivec4(0, 1, 2, 3), ivec4(left))) : found;
}

float logit(int i) {
    return x[from + i / 4][i % 4];
}

// An unsigned integer for each float, in the same order.
uint key_of(float v) {
    uint bits = floatBitsToUint(v == 0.0 ? 0.0 : v);
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

// The sum, or the maximum, of the values of all invocations.
vec4 reduce(vec4 own, bool is_maximum) {
    workgroup_barrier();
    scratch[lane] = own;
    for (int step = LANES / 2; step > 0; step /= 2) {
        workgroup_barrier();
        if (lane < step) {
            vec4 other = scratch[lane + step];
            scratch[lane] = is_maximum ? max(scratch[lane], other) : scratch[lane] + other;
        }
    }
    workgroup_barrier();
    return scratch[0];
}

// exp(v) for a v of 0 or less.
float exp_of(float v) {
    return exp(max(v, -104.0)) * (v < -104.0 ? 0.0 : 1.0);
}

// The sum of the values of this invocation and of those before it. scratch[LANES - 1].x has the total.
float inclusive_scan(float own) {
    workgroup_barrier();
    scratch[lane].x = own;
    for (int step = 1; step < LANES; step *= 2) {
        workgroup_barrier();
        float other = lane >= step ? scratch[lane - step].x : 0.0;
        workgroup_barrier();
        scratch[lane].x += other;
    }
    workgroup_barrier();
    return scratch[lane].x;
}

// How many logits are at least as great as each of three keys, or the sum of their exponentials; of
// those from `least_key` on.
vec3 count_or_sum(uvec3 keys, uint least_key, float maximum, bool counted) {
    vec3 sum = vec3(0.0);
    int quads = (n + 3) / 4;
    for (int i = lane; i < quads; i += FETCHES * LANES) {
        vec4 loaded[FETCHES];
        for (int j = 0; j < FETCHES; ++j) loaded[j] = logits(min(i + j * LANES, quads - 1));
        for (int j = 0; j < FETCHES; ++j)
            for (int k = 0; k < 4; ++k) {
                float v = loaded[j][k];
                uint key = key_of(v);
                if (i + j * LANES >= quads || 4 * (i + j * LANES) + k >= n || key < least_key) continue;
                sum += (counted ? 1.0 : exp_of(v - maximum)) * vec3(greaterThanEqual(uvec3(key), keys));
            }
    }
    return reduce(vec4(sum, 0.0), false).xyz;
}

// The weight of logit i in the draw; 0 where it may not be drawn.
float weight_of(int i, uint least_key, float maximum, float min_p, float temperature) {
    float v = logit(i);
    return key_of(v) < least_key || exp_of(v - maximum) < min_p ? 0.0 : exp_of((v - maximum) / temperature);
}

// The greatest key for which the logits of at least that key are `wanted`, or their exponentials have
// that sum.
uint threshold(float wanted, uint least_key, float maximum, bool counted) {
    uint found = 0u;
    for (int shift = 30; shift >= 0; shift -= 2) {
        uvec3 keys = found | (uvec3(1u, 2u, 3u) << uint(shift));
        vec3 have = count_or_sum(keys, least_key, maximum, counted);
        found = have.z >= wanted ? keys.z : have.y >= wanted ? keys.y : have.x >= wanted ? keys.x : found;
    }
    return max(found, least_key);
}

void main() {
    lane = int(gl_LocalInvocationID.x);
    int row = int(WORKGROUP_ID.y);
    from = row * (x_row / 4);
    float temperature = rules[4 * row], top_k = floor(rules[4 * row + 1]);
    float top_p = rules[4 * row + 2], min_p = min(rules[4 * row + 3], 1.0);

    // The maximum, its first index, and whether there is a NaN.
    float maximum = uintBitsToFloat(0xff800000u);
    int first = n;
    bool is_number = true;
    for (int i = lane; i < (n + 3) / 4; i += LANES) {
        vec4 four = logits(i);
        for (int j = 0; j < 4; ++j) {
            if (4 * i + j >= n) break;
            is_number = is_number && !is_nan(four[j]);
            if (four[j] > maximum || first == n) {
                maximum = four[j];
                first = 4 * i + j;
            }
        }
    }
    vec4 whole_row = reduce(vec4(maximum, is_number ? 0.0 : 1.0, 0.0, 0.0), true);
    bool has_maximum = first < n && maximum == whole_row.x;
    maximum = whole_row.x;
    bool has_no_maximum = whole_row.y > 0.0 || !is_finite(maximum);
    if (has_no_maximum || temperature <= 0.0) {
        float place = reduce(vec4(has_maximum ? float(-first) : float(-n), 0.0, 0.0, 0.0), true).x;
        if (lane == 0) result[row] = has_no_maximum ? -1 : int(-place);
        return;
    }

    uint least_key = 0u;
    if (top_k > 0.0 && top_k < float(n)) least_key = threshold(top_k, least_key, maximum, true);
    if (top_p < 1.0) {
        float all = count_or_sum(uvec3(least_key), least_key, maximum, false).x;
        least_key = threshold(min(top_p, 1.0) * all, least_key, maximum, false);
        least_key = min(least_key, key_of(maximum));  // by rounding the target may exceed the total
    }
    // The row is divided into a range for each invocation, then so is the range that the random number
    // falls into, until one logit is left.
    int begin = 0, end = n;
    float target = -1.0, sum_before = 0.0;  // sum_before: of the weights before `begin`
    while (end - begin > 1 || target < 0.0) {
        int width = (end - begin + LANES - 1) / LANES;
        int first_own = min(begin + lane * width, end), last_own = min(first_own + width, end);
        float own = 0.0;
        for (int i = first_own; i < last_own; ++i)
            own += weight_of(i, least_key, maximum, min_p, temperature);
        float sum = inclusive_scan(own);
        if (target < 0.0) target = max(random[row], 0.0) * scratch[LANES - 1].x;
        // The first range whose sum exceeds the target; where by rounding none does, the last with a
        // weight.
        bool within = own > 0.0 && sum_before + sum > target;
        int chosen = -int(reduce(vec4(within ? float(-lane) : float(-LANES), 0.0, 0.0, 0.0), true).x);
        if (chosen == LANES)
            chosen = int(reduce(vec4(own > 0.0 ? float(lane) : -1.0, 0.0, 0.0, 0.0), true).x);
        if (chosen < 0) break;
        float skipped = reduce(vec4(lane == chosen ? sum - own : 0.0, 0.0, 0.0, 0.0), false).x;
        sum_before += skipped;
        end = min(begin + (chosen + 1) * width, end);
        begin += chosen * width;
    }
    if (lane == 0) result[row] = begin;
}
