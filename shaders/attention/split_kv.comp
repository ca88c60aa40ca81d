#version 310 es
// softmax(scale Q K^T + mask) V of a head for few queries, as flash.comp but with most of what it
// reads under way at once: a workgroup takes 4 WG_Y queries and walks along the keys WG_X at a time.
//
// For each step along the keys: an invocation has the scores of one key and four queries, by
// queries and keys that come BK depths at a time through shared memory; powers of these in shared
// memory; products with values, of which an invocation has four columns of all queries, the
// invocations of a slice all columns, and the slices take turns at the keys. Shared memory joins
// what the slices added up. Keys and values of the next turns are loaded before those of the
// present are used, VALUES of the latter for each invocation.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef WG_Y
#define WG_Y 2
#endif
#ifndef BK
#define BK 32
#endif
#ifndef VALUES
#define VALUES 8
#endif
#include "attention/operands.glsl"
#define LANES (WG_X * WG_Y)
#define BQ (4 * WG_Y)      // queries of a workgroup
#define DEPTHS (BK / 4)    // of a step, in vec4
#define KEY (DEPTHS + 1)   // from a key of the tile to the next: other banks
#define PARTS 8            // of a group of four queries' keys, when rows are reduced
#define K_LOADS ((DEPTHS + WG_Y - 1) / WG_Y)
#define Q_LOADS ((BK + WG_X - 1) / WG_X)
#if KEY / WG_Y < BQ
#define JOINED (KEY / WG_Y)  // queries whose slices the tile's memory holds
#else
#define JOINED BQ
#endif
#if BK % 4 != 0 || WG_X % PARTS != 0 || KEY < WG_Y
#error BK must be a multiple of four that has as many vec4 as WG_Y, WG_X one of eight
#endif
layout(local_size_x = WG_X, local_size_y = WG_Y) in;

shared vec4 tile[WG_X * KEY];     // keys, each by its depths; then what the slices added up
shared vec4 q_tile[BQ * DEPTHS];  // queries, each by its depths
shared vec4 powers[LANES];        // scores and their powers, of four queries each
shared vec4 parts[PARTS * WG_Y];  // greatest scores, sums of powers of four queries each
shared vec4 decay[WG_Y];          // what sums of former steps are to be multiplied by

int lane, key, group;           // this invocation's place among scores
int quads, slices, quad, slice; // columns of this workgroup, in vec4; the place among these
int first_query, first_quad;    // of this workgroup
vec4 k_next[K_LOADS], q_next[Q_LOADS], v_next[VALUES], total[BQ];

// Loads queries, and keys from `first` on, from a depth on; zeros behind the last.
void fetch_scores(int first, int depth) {
    for (int i = 0; i < K_LOADS; ++i) {
        int item = i * LANES + lane, from = depth + item % DEPTHS * 4;
        int token = first + item / DEPTHS;
        int at = K_FROM + place(token) * k_token + from;
        k_next[i] = FOUR(k, at, token < keys ? width - from : 0);
    }
    for (int i = 0; i < Q_LOADS; ++i) {
        int item = i * LANES + lane, from = depth + item % DEPTHS * 4;
        int token = first_query + item / DEPTHS;
        int at = Q_FROM + place(token) * q_token + from;
        q_next[i] = FOUR(q, at, token < queries ? width - from : 0);
    }
}

void store_scores() {
    for (int i = 0; i < K_LOADS; ++i) {
        int item = i * LANES + lane;
        if (DEPTHS % WG_Y != 0 && item >= WG_X * DEPTHS) break;
        tile[item / DEPTHS * KEY + item % DEPTHS] = k_next[i];
    }
    for (int i = 0; i < Q_LOADS; ++i) {
        int item = i * LANES + lane;
        if (BK % WG_X != 0 && item >= BQ * DEPTHS) break;
        q_tile[item] = q_next[i];
    }
}

// Four columns of the value that this invocation takes at a turn of the slices, of `count` keys from
// `first` on; zeros behind the last.
vec4 fetch_value(int first, int count, int turn) {
    int ahead = turn * slices + slice, column = (first_quad + quad) * 4;
    int at = V_FROM + place(first + ahead) * v_token + column;
    return FOUR(v, at, ahead < count ? columns - column : 0);
}

// What is added to the scores of a key.
vec4 fetch_mask(int token) {
    vec4 added = vec4(0.0);
#if HAS_MASK
    int at = mask_from + min(token, keys - 1) * mask_step;
    for (int i = 0; i < 4; ++i)
        added[i] = mask[at + min(first_query + group * 4 + i, queries - 1) * mask_token];
#endif
    return added;
}

// The scores of this invocation's key of `count` from `first` on, the least behind the last; the
// first depths are loaded.
vec4 multiply_scores(int first, int count) {
    vec4 added = fetch_mask(first + key);
    vec4 sums[4];
    for (int i = 0; i < 4; ++i) sums[i] = vec4(0.0);
    for (int depth = 0; depth < width; depth += BK) {
        wait();
        store_scores();
        wait();
        if (depth + BK < width) fetch_scores(first, depth + BK);
        else if (first + WG_X < keys) fetch_scores(first + WG_X, 0);
        if (key < count) {
            for (int d = 0; d < DEPTHS; ++d) {
                vec4 numbers = tile[key * KEY + d];
                for (int i = 0; i < 4; ++i)
                    sums[i] += q_tile[(group * 4 + i) * DEPTHS + d] * numbers;
            }
        }
    }
    for (int i = 0; i < 4; ++i) added[i] += dot(sums[i], vec4(scale));
    return key < count ? added : vec4(LEAST);
}

// Powers of the scores where all slices can read them. most, sum: the greatest scores so far of
// this invocation's queries, and the sums of this invocation's powers.
void share_powers(vec4 score, bool there, inout vec4 most, inout vec4 sum) {
    for (int i = 0; i < 4; ++i) {
        // Infinity and NaN leave no softmax: the sum tells, and no maximum is taken of them.
        if (is_finite(score[i]) || floatBitsToUint(score[i]) == 0xff800000u) continue;
        score[i] = LEAST;
        sum[i] = NAN;
    }
    powers[lane] = score;
    wait();
    if (key < PARTS) {
        vec4 part = powers[lane];
        for (int i = 1; i < WG_X / PARTS; ++i) part = max(part, powers[i * PARTS + lane]);
        parts[group * PARTS + key] = part;
    }
    wait();
    vec4 before = most;
    for (int i = 0; i < PARTS; ++i) most = max(most, parts[group * PARTS + i]);
    vec4 less = decayed(most - before), power = there ? decayed(most - score) : vec4(0.0);
    sum = sum * less + power;
    powers[lane] = power;
    if (key == 0) decay[group] = less;
    wait();
}

// The values of the keys from `first` on, by their powers; those of the first turns are loaded.
void add_values(int first, int count) {
    for (int i = 0; i < BQ; ++i) total[i] *= decay[i / 4][i % 4];
    for (int turn = 0; turn * slices < count; turn += VALUES) {
        for (int j = 0; j < VALUES; ++j) {
            vec4 value = v_next[j];
            v_next[j] = fetch_value(first, count, turn + j + VALUES);
            int at = min((turn + j) * slices + slice, WG_X - 1);
            for (int g = 0; g < WG_Y; ++g) {
                vec4 power = powers[g * WG_X + at];
                for (int i = 0; i < 4; ++i) total[g * 4 + i] += power[i] * value;
            }
        }
    }
}

// The sums of powers of all keys, by the powers' and the parts' memory.
void share_sums(vec4 sum) {
    wait();
    powers[lane] = sum;
    wait();
    if (key < PARTS) {
        vec4 part = powers[lane];
        for (int i = 1; i < WG_X / PARTS; ++i) part += powers[i * PARTS + lane];
        parts[group * PARTS + key] = part;
    }
}

// Stores four columns of a query's result, by what the slices added up.
void finish(int line, int at_quad, vec4 found) {
    float sum = 0.0;
    for (int i = 0; i < PARTS; ++i) sum += parts[line / 4 * PARTS + i][line % 4];
    // Nothing that is finite where no score was.
    found = is_finite(sum) && sum > 0.0 ? found / sum : vec4(NOTHING);
    int from = (first_quad + at_quad) * 4;
    int at = OUT_FROM + place(first_query + line) * out_token + from;
#if WIDE
    result[at / 4] = found;
#else
    for (int c = 0; c < 4; ++c)
        if (from + c < columns) result[at + c] = found[c];
#endif
}

// Adds up the slices, of JOINED queries at a time.
void join() {
    for (int line = 0; line < BQ; line += JOINED) {
        wait();
        for (int i = 0; i < JOINED; ++i)
            if (line + i < BQ) tile[i * LANES + lane] = total[line + i];
        wait();
        for (int item = lane; item < min(JOINED, BQ - line) * quads; item += LANES) {
            int at = item / quads * LANES + item % quads;
            vec4 found = tile[at];
            for (int i = 1; i < slices; ++i) found += tile[at + i * quads];
            if (first_query + line + item / quads < queries)
                finish(line + item / quads, item % quads, found);
        }
    }
}

void main() {
    lane = int(gl_LocalInvocationIndex);
    key = lane % WG_X;
    group = lane / WG_X;
    first_query = int(WORKGROUP_ID.y) * BQ;
    first_quad = int(WORKGROUP_ID.x) * LANES;
    quads = min((columns + 3) / 4 - first_quad, LANES);
    slices = LANES / quads;
    slice = lane / quads;  // of those beyond the last slice nothing is joined
    quad = lane - slice * quads;
    find_head(int(WORKGROUP_ID.z));
    for (int i = 0; i < BQ; ++i) total[i] = vec4(0.0);
    vec4 most = vec4(LEAST), sum = vec4(0.0);
    fetch_scores(0, 0);
    for (int first = 0; first < keys; first += WG_X) {
        int count = min(WG_X, keys - first);
        for (int j = 0; j < VALUES; ++j) v_next[j] = fetch_value(first, count, j);
        vec4 score = multiply_scores(first, count);
        share_powers(score, key < count, most, sum);
        add_values(first, count);
    }
    share_sums(sum);
    join();
}
