#version 310 es
// softmax(scale Q K^T + mask) V of a head (Vaswani et al. 2017) with its scores in registers (Dao et
// al. 2022): a workgroup takes WG_Y TM queries and 4 WG_X VN columns of the values, walks along the
// keys WG_X TN at a time, and keeps for each query the greatest score so far and the sum of the
// powers of what the scores are below it (Milakov and Gimelshein 2018).
//
// For each step along the keys: an invocation has the scores of TM queries and TN keys, by queries
// and keys that come BK depths at a time through shared memory, row by row in vec4; powers of these
// in shared memory; products with values, which come BK keys at a time. What comes next is loaded
// before the present is multiplied. Rows of tiles are permuted, so that invocations that stand
// beside one another, of TM queries and four keys in a row each, read rows beside one another.
//
// NVIDIA's compiler does not unroll long loops, and keeps arrays that these index in memory, for the
// whole kernel. So what takes long, as the softmax, finds its scores in shared memory, and the results
// in another array than that of the sums.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef TM
#define TM 4
#endif
#ifndef TN
#define TN 4
#endif
#ifndef VN
#define VN 2
#endif
#ifndef BK
#define BK 32
#endif
#include "attention/operands.glsl"
#define LANES (WG_X * WG_Y)
#define BQ (WG_Y * TM)       // queries of a workgroup
#define BN (WG_X * TN)       // keys of a step
#define GROUPS (TN / 4)      // of four keys of an invocation
#define COLUMNS (WG_X * VN)  // of values, in vec4
#define DEPTHS (BK / 4)      // of a tile, in vec4
#define ROW (DEPTHS + 1)     // from a row of a tile to the next: other banks
#define POWERS (BN / 4 + 1)  // from a query's powers to the next one's
#define Q_LOADS ((BQ * DEPTHS + LANES - 1) / LANES)
#define K_LOADS ((BN * DEPTHS + LANES - 1) / LANES)
#define V_LOADS ((BK * COLUMNS + LANES - 1) / LANES)
#if Q_LOADS + K_LOADS > V_LOADS
#define LOADS (Q_LOADS + K_LOADS)
#else
#define LOADS V_LOADS
#endif
#if (BQ + BN) * ROW > BK * COLUMNS
#define TILE ((BQ + BN) * ROW)
#else
#define TILE (BK * COLUMNS)
#endif
#if TN % 4 != 0 || TN > 8 || BK % 4 != 0
#error TN must be 4 or 8, BK a multiple of four
#endif
layout(local_size_x = WG_X, local_size_y = WG_Y) in;

shared vec4 tile[TILE];            // queries, then keys, each by its depths; then values, key by key
shared vec4 powers[BQ * POWERS];   // of the scores, query by query
shared float parts[BQ * WG_X];     // greatest scores and sums of a query that each invocation has
#if WINDOWED
// Places in their image of the workgroup's queries, and of the keys of two steps.
shared int places[BQ + 2 * BN];
#define QUERY(i) places[i]
#define KEY(token) places[BQ + (token) % (2 * BN)]
#else
#define QUERY(i) (first_query + (i))
#define KEY(token) (token)
#endif

int lane, row, column;          // this invocation's place among scores
int first_query, first_column;  // of this workgroup; the column in vec4
vec4 next[LOADS];               // what was loaded ahead
vec4 score[TM * GROUPS], total[TM * VN];
// Of each query: the greatest score, the sum of this invocation's powers, and what those of former
// steps are to be multiplied by.
float most[TM], sum[TM], less[TM];

// Finds the places of the keys of a step, from `first` on.
void find_keys(int first) {
#if WINDOWED
    for (int i = lane; i < BN; i += LANES) KEY(first + i) = place(first + i);
#endif
}

// Loads queries, and keys from `first` on, from a depth on; zeros behind the last.
void fetch_scores(int first, int depth) {
    for (int i = 0; i < Q_LOADS; ++i) {
        int item = i * LANES + lane, from = depth + item % DEPTHS * 4, at = item / DEPTHS;
        int query = at % WG_Y * TM + at / WG_Y;
        at = Q_FROM + QUERY(query) * q_token + from;
        next[i] = FOUR(q, at, first_query + query < queries ? width - from : 0);
    }
    for (int i = 0; i < K_LOADS; ++i) {
        int item = i * LANES + lane, from = depth + item % DEPTHS * 4, at = item / DEPTHS;
        int token = first + at % (BN / 4) * 4 + at / (BN / 4);
        at = K_FROM + KEY(token) * k_token + from;
        next[Q_LOADS + i] = FOUR(k, at, token < keys ? width - from : 0);
    }
}

void store_scores() {
    for (int i = 0; i < Q_LOADS; ++i) {
        int item = i * LANES + lane;
        if (BQ * DEPTHS % LANES != 0 && item >= BQ * DEPTHS) break;
        tile[item / DEPTHS * ROW + item % DEPTHS] = next[i];
    }
    for (int i = 0; i < K_LOADS; ++i) {
        int item = i * LANES + lane;
        if (BN * DEPTHS % LANES != 0 && item >= BN * DEPTHS) break;
        tile[(BQ + item / DEPTHS) * ROW + item % DEPTHS] = next[Q_LOADS + i];
    }
}

// Loads the values of keys from `first` on; zeros behind the last.
void fetch_values(int first) {
    for (int i = 0; i < V_LOADS; ++i) {
        int item = i * LANES + lane, from = (first_column + item % COLUMNS) * 4;
        int token = first + item / COLUMNS, at = V_FROM + KEY(token) * v_token + from;
        next[i] = FOUR(v, at, token < keys ? columns - from : 0);
    }
}

void store_values() {
    for (int i = 0; i < V_LOADS; ++i) {
        int item = i * LANES + lane;
        if (BK * COLUMNS % LANES != 0 && item >= BK * COLUMNS) break;
        tile[item] = next[i];
    }
}

// Adds to the scores the products of a tile's depths, of the first `groups` groups of keys alone.
void multiply_scores(const int groups) {
    for (int d = 0; d < DEPTHS; ++d) {
        vec4 a[TM];
        for (int i = 0; i < TM; ++i) a[i] = tile[(i * WG_Y + row) * ROW + d];
        for (int g = 0; g < groups; ++g) {
            vec4 b[4];
            for (int j = 0; j < 4; ++j)
                b[j] = tile[(BQ + j * (BN / 4) + g * WG_X + column) * ROW + d];
            for (int i = 0; i < TM; ++i) {
                vec4 s = score[i * GROUPS + g];
                s += a[i].x * vec4(b[0].x, b[1].x, b[2].x, b[3].x);
                s += a[i].y * vec4(b[0].y, b[1].y, b[2].y, b[3].y);
                s += a[i].z * vec4(b[0].z, b[1].z, b[2].z, b[3].z);
                s += a[i].w * vec4(b[0].w, b[1].w, b[2].w, b[3].w);
                score[i * GROUPS + g] = s;
            }
        }
    }
}

// Adds to the results the products of powers and values of a tile, from key `first` of `count` of
// the step on.
void multiply_values(int first, int count) {
    int end = (min(count - first, BK) + 3) / 4;
    for (int key = 0; key < end; ++key) {
        vec4 b[4 * VN];
        for (int k = 0; k < 4; ++k)
            for (int j = 0; j < VN; ++j)
                b[k * VN + j] = tile[(key * 4 + k) * COLUMNS + j * WG_X + column];
        for (int i = 0; i < TM; ++i) {
            vec4 a = powers[(i * WG_Y + row) * POWERS + first / 4 + key];
            for (int j = 0; j < VN; ++j) {
                vec4 t = total[i * VN + j];
                t += a.x * b[j];
                t += a.y * b[VN + j];
                t += a.z * b[2 * VN + j];
                t += a.w * b[3 * VN + j];
                total[i * VN + j] = t;
            }
        }
    }
}

// Where this invocation's powers of a query are among those of all.
int own_powers(int i) {
    return (i * WG_Y + row) * POWERS + column;
}

// Scales the scores of `count` keys from `first` on, adds the mask, and shares the greatest of each
// query; LEAST behind the last. Scores are in the powers' memory since.
void share_greatest(int first, int count) {
    for (int i = 0; i < TM; ++i)
        for (int g = 0; g < GROUPS; ++g) powers[own_powers(i) + g * WG_X] = score[i * GROUPS + g];
    for (int i = 0; i < TM; ++i) {
        vec4 greatest = vec4(LEAST);
        ivec4 positive = ivec4(0);    // the greatest bits, which tell of infinity and NaN
        uvec4 negative = uvec4(0u);   // the same, of negative numbers, and minus infinity is none
        for (int g = 0; g < GROUPS; ++g) {
            int key = (g * WG_X + column) * 4, at = own_powers(i) + g * WG_X;
            vec4 s = powers[at] * scale;
#if HAS_MASK
            int of_query = mask_from + min(first_query + row * TM + i, queries - 1) * mask_token;
            ivec4 of_key = min(first + key + ivec4(0, 1, 2, 3), ivec4(keys - 1)) * mask_step;
            s += vec4(mask[of_query + of_key.x], mask[of_query + of_key.y],
                      mask[of_query + of_key.z], mask[of_query + of_key.w]);
#endif
            s = mix(vec4(LEAST), s, lessThan(ivec4(key, key + 1, key + 2, key + 3), ivec4(count)));
            positive = max(positive, floatBitsToInt(s));
            negative = max(negative, floatBitsToUint(s));
            greatest = max(greatest, s);
            powers[at] = s;
        }
        bool sound = all(lessThan(positive, ivec4(0x7f800000))) &&
                     all(lessThanEqual(negative, uvec4(0xff800000u)));
        vec2 two = max(greatest.xy, greatest.zw);
        parts[(i * WG_Y + row) * WG_X + column] = sound ? max(two.x, two.y) : NAN;
    }
}

// Shares the powers of the step's scores.
void share_powers(int count) {
    for (int i = 0; i < TM; ++i) {
        float now = most[i];
        for (int j = 0; j < WG_X; ++j) now = greater(now, parts[(i * WG_Y + row) * WG_X + j]);
        less[i] = decayed(now - most[i]);
        most[i] = now;
        vec4 added = vec4(0.0);
        for (int g = 0; g < GROUPS; ++g) {
            int key = (g * WG_X + column) * 4, at = own_powers(i) + g * WG_X;
            vec4 power = decayed(vec4(now) - powers[at]);
            power = mix(vec4(0.0), power, lessThan(ivec4(key, key + 1, key + 2, key + 3), ivec4(count)));
            powers[at] = power;
            added += power;
        }
        sum[i] = sum[i] * less[i] + dot(added, vec4(1.0));
    }
}

// Has the results of former steps decay.
void decay_results() {
    for (int i = 0; i < TM; ++i)
        for (int j = 0; j < VN; ++j) total[i * VN + j] *= less[i];
}

// Stores the results divided by the queries' sums; nothing that is finite where no score was.
void finish() {
    vec4 found[TM * VN];
    for (int i = 0; i < TM * VN; ++i) found[i] = total[i];
    for (int i = 0; i < TM; ++i)
        parts[(i * WG_Y + row) * WG_X + column] = is_finite(most[i]) ? sum[i] : NAN;
    wait();
    for (int i = 0; i < TM; ++i) {
        int query = row * TM + i;
        float all = 0.0;
        for (int j = 0; j < WG_X; ++j) all += parts[(i * WG_Y + row) * WG_X + j];
        bool sound = is_finite(all) && all > 0.0;
        float factor = 1.0 / all;
        int to = OUT_FROM + QUERY(query) * out_token;
        for (int j = 0; j < VN; ++j) {
            int from = (first_column + j * WG_X + column) * 4;
            if (first_query + query >= queries || from >= columns) continue;
            vec4 numbers = sound ? found[i * VN + j] * factor : vec4(NOTHING);
#if WIDE
            result[(to + from) >> 2] = numbers;
#else
            for (int c = 0; c < 4; ++c)
                if (from + c < columns) result[to + from + c] = numbers[c];
#endif
        }
    }
}

void main() {
    lane = int(gl_LocalInvocationIndex);
#if WG_X % 8 == 0 && WG_Y % 4 == 0
    // Runs of 32 invocations cover 4 x 8 patches of the scores, and runs of four 2 x 2 of it, so that
    // they share what they read, as in common/tile.glsl.
    int patch_of_32 = lane / 32;
    column = patch_of_32 % (WG_X / 8) * 8 + lane % 2 + lane / 4 % 4 * 2;
    row = patch_of_32 / (WG_X / 8) * 4 + lane / 2 % 2 + lane / 16 % 2 * 2;
#else
    column = lane % WG_X;
    row = lane / WG_X;
#endif
    find_head(int(WORKGROUP_ID.z));
    first_query = int(WORKGROUP_ID.y) * BQ;
    first_column = int(WORKGROUP_ID.x) * COLUMNS;
    bool busy = first_query + row * TM < queries;  // some of its queries are there
    for (int i = 0; i < TM * VN; ++i) total[i] = vec4(0.0);
    for (int i = 0; i < TM; ++i) {
        most[i] = LEAST;
        sum[i] = 0.0;
    }
#if WINDOWED
    for (int i = lane; i < BQ; i += LANES) places[i] = place(first_query + i);
    find_keys(0);
    wait();
#endif
    fetch_scores(0, 0);
    for (int first = 0; first < keys; first += BN) {
        int count = min(BN, keys - first);
        for (int i = 0; i < TM * GROUPS; ++i) score[i] = vec4(0.0);
        for (int depth = 0; depth < width; depth += BK) {
            wait();
            store_scores();
            wait();
            if (depth + BK < width) fetch_scores(first, depth + BK);
            else fetch_values(first);
            if (busy && (GROUPS == 1 || count > 4 * WG_X)) multiply_scores(GROUPS);
            else if (busy) multiply_scores(1);
        }
        share_greatest(first, count);
        find_keys(first + BN);
        wait();
        store_values();
        share_powers(count);
        for (int key = 0; key < count; key += BK) {
            wait();
            if (key + BK < count) fetch_values(first + key + BK);
            else if (first + BN < keys) fetch_scores(first + BN, 0);
            if (key == 0) decay_results();
            if (busy) multiply_values(key, count);
            if (key + BK >= count) break;
            wait();
            store_values();
        }
    }
    finish();
}
