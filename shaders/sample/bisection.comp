#version 310 es
// A number of each row of logits, drawn by their probabilities: a row a workgroup. Nothing is sorted:
// the least logit that may be drawn is found by its bits, two at a time, from counts of the logits that
// are at least as great (for top_k) or from sums of their powers (for top_p).
#ifndef LANES
#define LANES 128
#endif
#ifndef FETCHES
#define FETCHES 4
#endif
#include "common/launch.glsl"
#include "common/wait.glsl"
#include "common/nan.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Rules { float rules[]; };
layout(std430, binding = 2) buffer Random { float random[]; };
layout(std430, binding = 3) buffer Out { int result[]; };
uniform int rows, n, x_row;
shared vec4 shares[LANES];
int lane, from;  // this invocation; the row's first vec4

// Four logits of the row; those behind its end as negative infinities.
vec4 logits(int quad) {
    vec4 found = x[from + quad];
    int left = n - 4 * quad;
    return left < 4 ? mix(vec4(uintBitsToFloat(0xff800000u)), found, lessThan(ivec4(0, 1, 2, 3), ivec4(left))) : found;
}

float logit(int i) {
    return x[from + i / 4][i % 4];
}

// The order of floats as the order of unsigned integers, and back.
uint key_of(float v) {
    uint bits = floatBitsToUint(v == 0.0 ? 0.0 : v);
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

float of_key(uint key) {
    return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key);
}

// The sum, or the greatest, of all invocations' numbers.
vec4 joined(vec4 own, bool greatest) {
    wait();
    shares[lane] = own;
    for (int step = LANES / 2; step > 0; step /= 2) {
        wait();
        if (lane < step) {
            vec4 other = shares[lane + step];
            shares[lane] = greatest ? max(shares[lane], other) : shares[lane] + other;
        }
    }
    wait();
    return shares[0];
}

// exp(v) for a v of 0 or less.
float power(float v) {
    return exp(max(v, -104.0)) * (v < -104.0 ? 0.0 : 1.0);
}

// The sum of this invocation's number and of those before it; that of all is in shares[LANES - 1].x.
float up_to(float own) {
    wait();
    shares[lane].x = own;
    for (int step = 1; step < LANES; step *= 2) {
        wait();
        float other = lane >= step ? shares[lane - step].x : 0.0;
        wait();
        shares[lane].x += other;
    }
    wait();
    return shares[lane].x;
}

// How much of the row is at least as great as each of three keys: how many logits, or the sum of their
// powers; of those from `least` on.
vec3 share(uvec3 keys, uint least, float most, bool counted) {
    vec3 sum = vec3(0.0);
    int quads = (n + 3) / 4;
    for (int i = lane; i < quads; i += FETCHES * LANES) {
        vec4 fours[FETCHES];
        for (int j = 0; j < FETCHES; ++j) fours[j] = logits(min(i + j * LANES, quads - 1));
        for (int j = 0; j < FETCHES; ++j)
            for (int k = 0; k < 4; ++k) {
                float v = fours[j][k];
                uint key = key_of(v);
                if (i + j * LANES >= quads || 4 * (i + j * LANES) + k >= n || key < least) continue;
                sum += (counted ? 1.0 : power(v - most)) * vec3(greaterThanEqual(uvec3(key), keys));
            }
    }
    return joined(vec4(sum, 0.0), false).xyz;
}

// The weight by which a number is drawn; 0 for one that may not be.
float weight_of(int i, uint least, float most, float min_p, float temperature) {
    float v = logit(i);
    return key_of(v) < least || power(v - most) < min_p ? 0.0 : power((v - most) / temperature);
}

// The greatest key from which on the row has at least `wanted`.
uint threshold(float wanted, uint least, float most, bool counted) {
    uint found = 0u;
    for (int shift = 30; shift >= 0; shift -= 2) {
        uvec3 keys = found | (uvec3(1u, 2u, 3u) << uint(shift));
        vec3 have = share(keys, least, most, counted);
        found = have.z >= wanted ? keys.z : have.y >= wanted ? keys.y : have.x >= wanted ? keys.x : found;
    }
    return max(found, least);
}

void main() {
    lane = int(gl_LocalInvocationID.x);
    int row = int(WORKGROUP_ID.y);
    from = row * (x_row / 4);
    float temperature = rules[4 * row], top_k = floor(rules[4 * row + 1]);
    float top_p = rules[4 * row + 2], min_p = min(rules[4 * row + 3], 1.0);

    // The greatest logit, the first that is it, and whether there is a NaN.
    float most = uintBitsToFloat(0xff800000u);
    int first = n;
    bool is_number = true;
    for (int i = lane; i < (n + 3) / 4; i += LANES) {
        vec4 four = logits(i);
        for (int j = 0; j < 4; ++j) {
            if (4 * i + j >= n) break;
            is_number = is_number && !is_nan(four[j]);
            if (four[j] > most || first == n) {
                most = four[j];
                first = 4 * i + j;
            }
        }
    }
    vec4 greatest = joined(vec4(most, is_number ? 0.0 : 1.0, 0.0, 0.0), true);
    bool mine = first < n && most == greatest.x;
    most = greatest.x;
    bool refused = greatest.y > 0.0 || !is_finite(most);
    if (refused || temperature <= 0.0) {
        float place = joined(vec4(mine ? float(-first) : float(-n), 0.0, 0.0, 0.0), true).x;
        if (lane == 0) result[row] = refused ? -1 : int(-place);
        return;
    }

    uint least = 0u;
    if (top_k > 0.0 && top_k < float(n)) least = threshold(top_k, least, most, true);
    if (top_p < 1.0) {
        float all = share(uvec3(least), least, most, false).x;
        least = threshold(min(top_p, 1.0) * all, least, most, false);
        least = min(least, key_of(most));  // rounding may ask for more than there is
    }
    // The numbers that may be drawn are cut into a share for each invocation, then the share that the
    // random number lies in, until one number is left.
    int begin = 0, end = n;
    float target = -1.0, before = 0.0;  // before: the sum of those before `begin`
    while (end - begin > 1 || target < 0.0) {
        int width = (end - begin + LANES - 1) / LANES;
        int first_own = min(begin + lane * width, end), last_own = min(first_own + width, end);
        float own = 0.0;
        for (int i = first_own; i < last_own; ++i) own += weight_of(i, least, most, min_p, temperature);
        float sum = up_to(own);
        if (target < 0.0) target = max(random[row], 0.0) * shares[LANES - 1].x;
        // Whose sum exceeds it; for want of that by rounding, the last that has any.
        bool within = own > 0.0 && before + sum > target;
        int chosen = -int(joined(vec4(within ? float(-lane) : float(-LANES), 0.0, 0.0, 0.0), true).x);
        if (chosen == LANES) chosen = int(joined(vec4(own > 0.0 ? float(lane) : -1.0, 0.0, 0.0, 0.0), true).x);
        if (chosen < 0) break;
        float less = joined(vec4(lane == chosen ? sum - own : 0.0, 0.0, 0.0, 0.0), false).x;
        before += less;
        end = min(begin + (chosen + 1) * width, end);
        begin += chosen * width;
    }
    if (lane == 0) result[row] = begin;
}
