#version 310 es
// softmax(scale Q K^T + mask) V of a head (Vaswani et al. 2017) with its scores in registers (Dao et
// al. 2022): a workgroup takes WG_Y TM queries and 4 WG_X VN columns of the values, walks along the
// keys WG_X TN at a time, and keeps for each query the greatest score so far and the sum of the
// powers of what the scores are below it (Milakov and Gimelshein 2018).
//
// For each step along the keys: an invocation has the scores of TM queries and TN keys, by queries
// and keys that come BK depths at a time through shared memory, depth by depth; powers of these in
// shared memory, key by key; products of these with values, which come BK keys at a time. What comes
// next is loaded while the present is multiplied, and stored in the other turn of its memory. As in
// common/tile.glsl, runs of four invocations cover 2 x 2 of the tile, and an invocation's queries,
// keys and columns are groups of four spread over it. Scores are vec4 of four queries each, so that
// the softmax is one of vectors.
//
// NVIDIA's compiler does not unroll long loops, and keeps arrays that these index in memory, for the
// whole kernel: what is done to each key, group or row of an invocation is called in the text.
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
#define BK 8
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#include "attention/operands.glsl"
#define LANES (WG_X * WG_Y)
#define BQ (WG_Y * TM)        // queries of a workgroup
#define BN (WG_X * TN)        // keys of a step
#define COLUMNS (WG_X * VN)   // of values, in vec4
#define GM (TM / 4)           // groups of four queries of an invocation
#define GN (TN / 4)           // groups of four keys
#define QP (BQ + 4)           // from a depth to the next: other banks
#define KP (BN + 4)
#define POWERS (BQ / 4 + 1)   // from a key's powers to the next one's, in vec4
#define DEPTHS (BK / 4)
#define Q_LOADS ((BQ * DEPTHS + LANES - 1) / LANES)
#define K_LOADS ((BN * DEPTHS + LANES - 1) / LANES)
#define V_LOADS ((BK * COLUMNS + LANES - 1) / LANES)
#if Q_LOADS + K_LOADS > V_LOADS
#define LOADS (Q_LOADS + K_LOADS)
#else
#define LOADS V_LOADS
#endif
#if TM == 4
#define EACH_GROUP(call) call(0);
#define EACH_ROW(call) call(0); call(1); call(2); call(3);
#elif TM == 8
#define EACH_GROUP(call) call(0); call(1);
#define EACH_ROW(call) call(0); call(1); call(2); call(3); call(4); call(5); call(6); call(7);
#else
#error TM must be 4 or 8
#endif
#if TN == 4
#define EACH_KEY(call) call(0); call(1); call(2); call(3);
#elif TN == 8
#define EACH_KEY(call) call(0); call(1); call(2); call(3); call(4); call(5); call(6); call(7);
#else
#error TN must be 4 or 8
#endif
#if BK % 4 != 0
#error BK must be a multiple of four
#endif
#if LANES % DEPTHS != 0
#error WG_X WG_Y must be a multiple of BK / 4
#endif
// Four numbers from `at` on, of which `left`, at least one, are there.
#if WIDE
#define LOAD(numbers, at, left) numbers[(at) >> 2]
#else
#define LOAD FOUR
#endif
#define LOG2_E 1.44269504
#define INFINITE uintBitsToFloat(0x7f800000u)
layout(local_size_x = WG_X, local_size_y = WG_Y) in;

shared float q_tile[2 * BK * QP], k_tile[2 * BK * KP];
shared vec4 v_tile[2 * BK * COLUMNS];
shared vec4 powers[BN * POWERS];
shared vec4 parts[WG_X * POWERS];  // greatest scores, or sums, of each invocation's keys

int lane, row, column;          // this invocation's place in the tile
int first_query, first_column;  // of this workgroup; the column in vec4
int q_from[Q_LOADS], k_from[K_LOADS];  // where the rows begin that this invocation loads
vec4 next[LOADS];               // what was loaded ahead
vec4 score[TN * GM], total[TM * VN];
// Of each query: the greatest score, the sum of the powers of this invocation's keys, and what those
// of former steps are to be multiplied by.
vec4 most[GM], sum[GM], less[GM];

// 2^-x for an x of 0 or more: at 151 it is 0, and what drivers give for more is their own.
vec4 halved(vec4 x) {
    return exp2(-min(x, vec4(151.0)));
}

void find_queries() {
    for (int i = 0; i < Q_LOADS; ++i) {
        int query = first_query + (i * LANES + lane) / DEPTHS;
        q_from[i] = Q_FROM + place(min(query, queries - 1)) * q_token;
    }
}

// Finds where the keys of the step from `first` on lie.
void find_keys(int first) {
    for (int i = 0; i < K_LOADS; ++i) {
        int key = first + (i * LANES + lane) / DEPTHS;
        k_from[i] = K_FROM + place(min(key, keys - 1)) * k_token;
    }
}

// Loads queries and keys from a depth on. No load is tested, which would make it be waited for: what
// is behind the last query, key or depth is a number before it, and `store_scores` has zeros behind
// the last depth.
void fetch_scores(int depth) {
    int from = min(depth + lane % DEPTHS * 4, (width - 1) & ~3);
    for (int i = 0; i < Q_LOADS; ++i) next[i] = LOAD(q, q_from[i] + from, width - from);
    for (int i = 0; i < K_LOADS; ++i) next[Q_LOADS + i] = LOAD(k, k_from[i] + from, width - from);
}

// Queries are scaled on the way, for powers of two.
void store_scores(int turn, int depth) {
    if (depth + lane % DEPTHS * 4 >= width)
        for (int i = 0; i < Q_LOADS + K_LOADS; ++i) next[i] = vec4(0.0);
    int to = turn * BK + lane % DEPTHS * 4;
    for (int i = 0; i < Q_LOADS; ++i) {
        int item = i * LANES + lane;
        if (BQ * DEPTHS % LANES != 0 && item >= BQ * DEPTHS) break;
        vec4 scaled = next[i] * (scale * LOG2_E);
        for (int j = 0; j < 4; ++j) q_tile[(to + j) * QP + item / DEPTHS] = scaled[j];
    }
    for (int i = 0; i < K_LOADS; ++i) {
        int item = i * LANES + lane;
        if (BN * DEPTHS % LANES != 0 && item >= BN * DEPTHS) break;
        for (int j = 0; j < 4; ++j) k_tile[(to + j) * KP + item / DEPTHS] = next[Q_LOADS + i][j];
    }
}

// Loads the values of keys from `first` on; `store_values` has zeros behind the last.
void fetch_values(int first) {
    for (int i = 0; i < V_LOADS; ++i) {
        int item = i * LANES + lane, token = min(first + item / COLUMNS, keys - 1);
        int from = min((first_column + item % COLUMNS) * 4, (columns - 1) & ~3);
        next[i] = LOAD(v, V_FROM + place(token) * v_token + from, columns - from);
    }
}

void store_values(int turn, int first) {
    if (first + BK > keys)
        for (int i = 0; i < V_LOADS; ++i)
            if (first + (i * LANES + lane) / COLUMNS >= keys) next[i] = vec4(0.0);
    for (int i = 0; i < V_LOADS; ++i) {
        int item = i * LANES + lane;
        if (BK * COLUMNS % LANES != 0 && item >= BK * COLUMNS) break;
        v_tile[turn * BK * COLUMNS + item] = next[i];
    }
}

// Four queries, or keys, at a depth of both turns.
vec4 queries_at(int depth, int quad) {
    int at = depth * QP + quad * 4;
    return vec4(q_tile[at], q_tile[at + 1], q_tile[at + 2], q_tile[at + 3]);
}

vec4 keys_at(int depth, int quad) {
    int at = depth * KP + quad * 4;
    return vec4(k_tile[at], k_tile[at + 1], k_tile[at + 2], k_tile[at + 3]);
}

// Loads what this invocation multiplies at a depth of both turns, of the first `gn` groups of keys
// alone, and adds the products to the scores.
void take_scores(int depth, const int gn, out vec4 a[GM], out vec4 b[GN]) {
    for (int g = 0; g < GM; ++g) a[g] = queries_at(depth, g * WG_Y + row);
    for (int j = 0; j < gn; ++j) b[j] = keys_at(depth, j * WG_X + column);
}

void add_scores(const int gn, vec4 a[GM], vec4 b[GN]) {
    for (int j = 0; j < gn; ++j)
        for (int c = 0; c < 4; ++c)
            for (int g = 0; g < GM; ++g) score[(j * 4 + c) * GM + g] += b[j][c] * a[g];
}

void multiply_scores(int turn, const int gn) {
    vec4 a[GM], b[GN];
#if AHEAD
    vec4 a_next[GM], b_next[GN];
    int first = turn * BK;
    take_scores(first, gn, a, b);
    for (int step = 1; step < BK - 1; step += 2) {
        take_scores(first + step, gn, a_next, b_next);
        add_scores(gn, a, b);
        take_scores(first + step + 1, gn, a, b);
        add_scores(gn, a_next, b_next);
    }
    take_scores(first + BK - 1, gn, a_next, b_next);
    add_scores(gn, a, b);
    add_scores(gn, a_next, b_next);
#else
    for (int step = 0; step < BK; ++step) {
        take_scores(turn * BK + step, gn, a, b);
        add_scores(gn, a, b);
    }
#endif
}

// Loads the powers of a key of the step, and its value at a place of both turns, and adds the
// products to the results.
void take_values(int key, int at, out vec4 a[GM], out vec4 b[VN]) {
    for (int g = 0; g < GM; ++g) a[g] = powers[key * POWERS + g * WG_Y + row];
    for (int j = 0; j < VN; ++j) b[j] = v_tile[at * COLUMNS + j * WG_X + column];
}

void add_values(vec4 a[GM], vec4 b[VN]) {
    for (int g = 0; g < GM; ++g)
        for (int i = 0; i < 4; ++i)
            for (int j = 0; j < VN; ++j) total[(g * 4 + i) * VN + j] += a[g][i] * b[j];
}

void multiply_values(int turn, int key) {
    vec4 a[GM], b[VN];
#if AHEAD
    vec4 a_next[GM], b_next[VN];
    int first = turn * BK;
    take_values(key, first, a, b);
    for (int step = 1; step < BK - 1; step += 2) {
        take_values(key + step, first + step, a_next, b_next);
        add_values(a, b);
        take_values(key + step + 1, first + step + 1, a, b);
        add_values(a_next, b_next);
    }
    take_values(key + BK - 1, first + BK - 1, a_next, b_next);
    add_values(a, b);
    add_values(a_next, b_next);
#else
    for (int step = 0; step < BK; ++step) {
        take_values(key + step, turn * BK + step, a, b);
        add_values(a, b);
    }
#endif
}

// Which of the step's keys this invocation's n-th is.
int key_of(const int n) {
    return (n / 4 * WG_X + column) * 4 + n % 4;
}

int step_first, step_count;  // the step's first key, and how many it has

// Begins the scores of a key: with the mask, since what is loaded before the products takes no
// registers of its own.
void begin_key(const int n) {
    for (int g = 0; g < GM; ++g) {
#if HAS_MASK
        ivec4 at = min(first_query + (g * WG_Y + row) * 4 + ivec4(0, 1, 2, 3), ivec4(queries - 1));
        at = at * mask_token + (mask_from + min(step_first + key_of(n), keys - 1) * mask_step);
        score[n * GM + g] = vec4(mask[at.x], mask[at.y], mask[at.z], mask[at.w]) * LOG2_E;
#else
        score[n * GM + g] = vec4(0.0);
#endif
    }
}

void drop_key(const int n) {
    if (key_of(n) >= step_count)
        for (int g = 0; g < GM; ++g) score[n * GM + g] = vec4(-INFINITE);
}

// Shares the greatest scores of this invocation's keys: infinity where one is infinite or NaN, which
// leaves no softmax.
void share_greatest(const int g) {
    vec4 greatest = score[g];
    uvec4 sizes = floatBitsToUint(greatest) & 0x7fffffffu;
    for (int n = 1; n < TN; ++n) {
        greatest = max(greatest, score[n * GM + g]);
        sizes = max(sizes, floatBitsToUint(score[n * GM + g]) & 0x7fffffffu);
    }
    greatest = mix(greatest, vec4(INFINITE), greaterThan(sizes, uvec4(0x7f800000u)));
    parts[column * POWERS + g * WG_Y + row] = greatest;
}

void find_greatest(const int g) {
    vec4 now = most[g];
    for (int c = 0; c < WG_X; ++c) now = max(now, parts[c * POWERS + g * WG_Y + row]);
    less[g] = halved(now - most[g]);
    most[g] = now;
    sum[g] *= less[g];
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < VN; ++j) total[(g * 4 + i) * VN + j] *= less[g][i];
}

void share_powers(const int n) {
    for (int g = 0; g < GM; ++g) {
        vec4 power = halved(most[g] - score[n * GM + g]);
        sum[g] += power;
        powers[key_of(n) * POWERS + g * WG_Y + row] = power;
    }
}

void share_sum(const int g) {
    vec4 all = sum[g];
    for (int i = 0; i < 4; ++i)
        if (!is_finite(most[g][i])) all[i] = NAN;
    parts[column * POWERS + g * WG_Y + row] = all;
}

void find_sum(const int g) {
    vec4 all = vec4(0.0);
    for (int c = 0; c < WG_X; ++c) all += parts[c * POWERS + g * WG_Y + row];
    sum[g] = all;
}

// Stores a row's results divided by its sum; nothing that is finite where no score was.
void finish(const int i) {
    int query = first_query + (i / 4 * WG_Y + row) * 4 + i % 4;
    if (query >= queries) return;
    float all = sum[i / 4][i % 4], factor = 1.0 / all;
    bool sound = is_finite(all) && all > 0.0;
    int to = OUT_FROM + place(query) * out_token;
    for (int j = 0; j < VN; ++j) {
        int from = (first_column + j * WG_X + column) * 4;
        vec4 numbers = sound ? total[i * VN + j] * factor : vec4(NOTHING);
#if WIDE
        if (from < columns) result[(to + from) >> 2] = numbers;
#else
        for (int c = 0; c < 4; ++c)
            if (from + c < columns) result[to + from + c] = numbers[c];
#endif
    }
}

void main() {
    lane = int(gl_LocalInvocationIndex);
#if WG_X % 8 == 0 && WG_Y % 4 == 0
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
    bool busy = first_query + row * 4 < queries;  // some of its queries are there
    for (int i = 0; i < TM * VN; ++i) total[i] = vec4(0.0);
    for (int g = 0; g < GM; ++g) {
        most[g] = vec4(LEAST);
        sum[g] = vec4(0.0);
    }
    find_queries();
    find_keys(0);
    fetch_scores(0);
    store_scores(0, 0);
    wait();
    for (int first = 0; first < keys; first += BN) {
        int turn = 0;
        step_first = first;
        step_count = min(BN, keys - first);
        EACH_KEY(begin_key)
        for (int depth = 0; depth < width; depth += BK) {
            bool more = depth + BK < width;
            if (more) fetch_scores(depth + BK);
            else fetch_values(first);
            if (busy && (GN == 1 || step_count > 4 * WG_X)) multiply_scores(turn, GN);
            else if (busy) multiply_scores(turn, 1);
            if (!more) break;
            turn = 1 - turn;
            store_scores(turn, depth + BK);
            wait();
        }
        store_values(0, first);
        if (busy) {
            if (step_count < BN) { EACH_KEY(drop_key) }
            EACH_GROUP(share_greatest)
        }
        wait();
        if (busy) {
            EACH_GROUP(find_greatest)
            EACH_KEY(share_powers)
        }
        wait();
        turn = 0;
        for (int key = 0; key < step_count; key += BK) {
            bool more = key + BK < step_count;
            if (more) {
                fetch_values(first + key + BK);
            } else {
                find_keys(first + BN);
                fetch_scores(0);
            }
            if (busy) multiply_values(turn, key);
            turn = 1 - turn;
            if (more) store_values(turn, first + key + BK);
            else store_scores(0, 0);
            wait();
        }
    }
    EACH_GROUP(share_sum)
    wait();
    EACH_GROUP(find_sum)
    EACH_ROW(finish)
}
