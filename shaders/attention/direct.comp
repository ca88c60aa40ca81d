#version 310 es
// softmax(scale Q K^T + mask) V of a head where registers are few and shared memory is no faster
// than what it would save: nothing is loaded ahead, queries and keys are read where they lie, and what
// is added up over the steps stays in shared memory. A workgroup takes four queries and walks along the
// keys WG_X at a time.
//
// For each step along the keys: an invocation computes the scores of one key and four queries, which
// become weights, exp(score - maximum), in shared memory; then products with values, of which an
// invocation has four columns, the invocations of a slice all columns, and the slices take turns at
// the keys.
#ifndef WG_X
#define WG_X 64
#endif
#include "attention/operands.glsl"
#define PARTIALS 4  // of a step's keys, when rows are reduced
layout(local_size_x = WG_X) in;

// What an invocation has to do with four queries at a time is a vec4.
shared vec4 sums_of_values[4 * WG_X];  // of each query, by slice
shared vec4 sums[WG_X];                // of the weights
shared vec4 weights[WG_X];             // scores, then weights
shared vec4 partials[PARTIALS];        // maximal scores of a step, at last sums of weights
shared vec4 maximum;                   // the maximal scores so far

#if WINDOWED
shared int q_places[4];   // of queries in their image
shared int places[WG_X];  // of a step's keys
#endif

// Four numbers of values from `at` on, of which `left`, at least one, are there; zeros behind them.
#if WIDE
#define VALUES(at, left) v[(at) >> 2]
#else
#define VALUES(at, left) \
    vec4(v[at], (left) > 1 ? v[(at) + 1] : 0.0, \
         (left) > 2 ? v[(at) + 2] : 0.0, (left) > 3 ? v[(at) + 3] : 0.0)
#endif

// The scores of a key and four queries, the last of them once more behind it.
vec4 scores(int first_query, int key) {
#if WINDOWED
    int at = place(key);
    places[gl_LocalInvocationIndex] = at;
#else
    int at = key;
#endif
    int k_at = K_FROM + at * k_token;
    ivec4 line = min(first_query + ivec4(0, 1, 2, 3), ivec4(queries - 1));
#if WINDOWED
    ivec4 q_at;
    for (int j = 0; j < 4; ++j) q_at[j] = Q_FROM + q_places[j] * q_token;
#else
    ivec4 q_at = Q_FROM + line * q_token;
#endif
    vec4 score = vec4(0.0);
#if WIDE
    for (int i = 0; i < width; i += 4) {
        vec4 numbers = k[(k_at + i) >> 2];
        for (int j = 0; j < 4; ++j) score[j] += dot(q[(q_at[j] + i) >> 2], numbers);
    }
#else
    for (int i = 0; i < width; ++i)
        for (int j = 0; j < 4; ++j) score[j] += q[q_at[j] + i] * k[k_at + i];
#endif
    score *= scale;
#if HAS_MASK
    int mask_at = mask_from + key * mask_step;
    for (int j = 0; j < 4; ++j) score[j] += mask[mask_at + line[j] * mask_token];
#endif
    return score;
}

// Puts the weights of this invocation's key, if there is one, into shared memory. Returns by what
// former sums are to be multiplied.
vec4 share_weights(vec4 score, bool is_key) {
    int lane = int(gl_LocalInvocationIndex);
    vec4 sum = sums[lane];
    for (int i = 0; i < 4; ++i) {
        // Infinity and NaN leave no softmax: the sum tells, and no maximum is taken of them.
        if (is_finite(score[i]) || floatBitsToUint(score[i]) == 0xff800000u) continue;
        score[i] = LEAST;
        sum[i] = NAN;
    }
    sums[lane] = sum;
    weights[lane] = score;
    workgroup_barrier();
    if (lane < PARTIALS) {
        vec4 part = weights[lane];
        for (int i = PARTIALS + lane; i < WG_X; i += PARTIALS) part = max(part, weights[i]);
        partials[lane] = part;
    }
    workgroup_barrier();
    vec4 new_maximum = maximum;
    for (int i = 0; i < PARTIALS; ++i) new_maximum = max(new_maximum, partials[i]);
    vec4 rescale = exp_minus(new_maximum - maximum);
    vec4 weight = is_key ? exp_minus(new_maximum - score) : vec4(0.0);
    sums[lane] = sums[lane] * rescale + weight;
    weights[lane] = weight;
    workgroup_barrier();
    if (lane == 0) maximum = new_maximum;
    return rescale;
}

void main() {
    int lane = int(gl_LocalInvocationIndex);
    find_head(int(WORKGROUP_ID.z));
    int first_query = int(WORKGROUP_ID.y) * 4, first_quad = int(WORKGROUP_ID.x) * WG_X;
    int quads = min((columns + 3) / 4 - first_quad, WG_X), slices = WG_X / quads;
    int slice = lane / quads, column = (first_quad + lane - slice * quads) * 4;
    for (int i = 0; i < 4; ++i) sums_of_values[i * WG_X + lane] = vec4(0.0);
    sums[lane] = vec4(0.0);
    if (lane == 0) maximum = vec4(LEAST);
#if WINDOWED
    if (lane < 4) q_places[lane] = place(min(first_query + lane, queries - 1));
    workgroup_barrier();
#endif
    for (int first = 0; first < keys; first += WG_X) {
        int count = min(WG_X, keys - first);
        vec4 score = vec4(LEAST);
        if (lane < count) score = scores(first_query, first + lane);
        vec4 rescale = share_weights(score, lane < count);
        vec4 added[4];
        for (int i = 0; i < 4; ++i) added[i] = sums_of_values[i * WG_X + lane] * rescale[i];
        int v_at = V_FROM + column;
        for (int key = slice; key < count; key += slices) {
#if WINDOWED
            int at = v_at + places[key] * v_token;
#else
            int at = v_at + (first + key) * v_token;
#endif
            vec4 value = VALUES(at, columns - column);
            for (int i = 0; i < 4; ++i) added[i] += weights[key][i] * value;
        }
        for (int i = 0; i < 4; ++i) sums_of_values[i * WG_X + lane] = added[i];
        workgroup_barrier();
    }
    if (lane < PARTIALS) {
        vec4 part = sums[lane];
        for (int i = PARTIALS + lane; i < WG_X; i += PARTIALS) part += sums[i];
        partials[lane] = part;
    }
    workgroup_barrier();
    int out_at = OUT_FROM + column;
    for (int i = slice; i < 4 && slice < slices && first_query + i < queries; i += slices) {
        float all = 0.0;
        for (int j = 0; j < PARTIALS; ++j) all += partials[j][i];
        vec4 found = vec4(0.0);
        for (int j = lane - slice * quads; j < slices * quads; j += quads)
            found += sums_of_values[i * WG_X + j];
        // Nothing that is finite where no score was.
        found = is_finite(all) && all > 0.0 ? found / all : vec4(NOTHING);
#if WINDOWED
        int at = out_at + q_places[i] * out_token;
#else
        int at = out_at + (first_query + i) * out_token;
#endif
#if WIDE
        result[at / 4] = found;
#else
        for (int c = 0; c < 4; ++c)
            if (column + c < columns) result[at + c] = found[c];
#endif
    }
}
