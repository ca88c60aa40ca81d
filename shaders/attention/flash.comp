#version 310 es
// softmax(scale Q K^T + mask) V of a head (Vaswani et al. 2017) with its scores in registers (Dao et
// al. 2022): a workgroup takes WG_Y TM queries and 4 WG_X VN columns of the values, walks along the
// keys WG_X TN at a time, and keeps for each query the greatest score so far and the sum of the
// powers of what the scores are below it (Milakov and Gimelshein 2018).
//
// Queries stay in shared memory, depth by depth, QD depths of them at a time. For each step along
// the keys: an invocation has the scores of TM queries and TN keys, by keys that come BK depths at a
// time through shared memory, key by key; powers of these in shared memory, key by key, too; products
// of these with values, as many numbers at a time as of keys. What comes next is loaded while the
// present is multiplied, and stored in the other turn of its memory. As in common/tile.glsl, runs of
// four invocations cover 2 x 2 of the tile. Scores are vec4 of four queries each, so that the
// softmax is one of vectors.
//
// NVIDIA's compiler does not unroll long loops, and keeps arrays that these index in memory, for the
// whole kernel: what is done to each key, group or row of an invocation is called in the text. It
// waits for loads where the text branches: the last chunk of a step has a text of its own.
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
#define BK 16
#endif
#ifndef QD
#define QD 32
#endif
#include "attention/operands.glsl"
#define LANES (WG_X * WG_Y)
#define BQ (WG_Y * TM)       // queries of a workgroup
#define BN (WG_X * TN)       // keys of a step
#define COLUMNS (WG_X * VN)  // of values, in vec4
#define GM (TM / 4)          // groups of four queries of an invocation
#define QUADS (BQ / 4)
#define QP (QUADS + 1)       // from a depth, or a key's powers, to the next: other banks
#define DEPTHS (BK / 4)      // of a chunk of keys, in vec4
#define ROW (DEPTHS + 1)     // from a key to the next: other banks
#define BV (TN * DEPTHS / VN)  // values of a chunk
#define LOADS (TN * DEPTHS / WG_Y)  // of a chunk, by each invocation
#define TURN (BN * ROW)
#if BK % 4 != 0 || QD % BK != 0 || LOADS * WG_Y != TN * DEPTHS || BV * VN != TN * DEPTHS
#error BK must be a multiple of four, QD of BK, TN BK / 4 of WG_Y and VN
#endif
#if BN % BV != 0 || BV % 4 != 0 || LANES % DEPTHS != 0
#error VN WG_X must be a multiple of BK / 4, TN BK / 4 of 4 VN
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
#if LOADS == 1
#define EACH_LOAD(call) call(0);
#elif LOADS == 2
#define EACH_LOAD(call) call(0); call(1);
#elif LOADS == 4
#define EACH_LOAD(call) call(0); call(1); call(2); call(3);
#elif LOADS == 8
#define EACH_LOAD(call) call(0); call(1); call(2); call(3); call(4); call(5); call(6); call(7);
#else
#error TN BK / 4 must be 1, 2, 4 or 8 times WG_Y
#endif
// Four numbers from `at` on, of which `left`, at least one, are there.
#if WIDE
#define LOAD(numbers, at, left) numbers[(at) >> 2]
#else
#define LOAD FOUR
#endif
#define INFINITE uintBitsToFloat(0x7f800000u)
layout(local_size_x = WG_X, local_size_y = WG_Y) in;

shared vec4 q_tile[QD * QP];
shared vec4 tile[2 * TURN];            // keys, or values
shared vec4 powers[BN * QP];
shared vec4 parts[WG_X * QUADS];      // greatest scores, or sums, of each invocation's keys

int lane, row, column;          // this invocation's place in the tile
int first_query, first_column;  // of this workgroup; the column in vec4
int first_key, key_count;       // of this step
int k_from[LOADS];              // where the keys begin that this invocation loads
int from, to;                   // of what is loaded and stored
vec4 next[LOADS];               // what was loaded ahead
vec4 score[TN * GM], total[TM * VN];
vec4 a[4 * GM], b[VN];          // what is multiplied: queries at four depths, or a key's powers; values
// Of each query: the greatest score, the sum of the powers of this invocation's keys, and what those
// of former steps are to be multiplied by.
vec4 most[GM], sum[GM], less[GM];

// Loads queries from a depth on, and stores them, scaled; zeros behind the last depth.
void load_queries(int depth) {
    for (int item = lane; item < QUADS * QD / 4; item += LANES) {
        int quad = item / (QD / 4), from = depth + item % (QD / 4) * 4;
        ivec4 at = first_query + quad * 4 + ivec4(0, 1, 2, 3);
        at = min(at, ivec4(queries - 1));
        at = Q_FROM + from + ivec4(place(at.x), place(at.y), place(at.z), place(at.w)) * q_token;
        vec4 x = FOUR(q, at.x, width - from), y = FOUR(q, at.y, width - from);
        vec4 z = FOUR(q, at.z, width - from), w = FOUR(q, at.w, width - from);
        int to = (from - depth) * QP + quad;
        q_tile[to] = vec4(x.x, y.x, z.x, w.x) * scale;
        q_tile[to + QP] = vec4(x.y, y.y, z.y, w.y) * scale;
        q_tile[to + 2 * QP] = vec4(x.z, y.z, z.z, w.z) * scale;
        q_tile[to + 3 * QP] = vec4(x.w, y.w, z.w, w.w) * scale;
    }
}

// Finds where the keys lie that this invocation loads of the step from `from` on.
void find_key(const int i) {
    k_from[i] = K_FROM + place(min(from + (i * LANES + lane) / DEPTHS, keys - 1)) * k_token;
}

void find_keys(int first) {
    from = first;
    EACH_LOAD(find_key)
}

// Loads keys from a depth on. No load is tested, which would make it be waited for: what is behind
// the last key or depth is a number before it, and `store_keys` has zeros behind the last depth.
void fetch_key(const int i) {
    next[i] = LOAD(k, k_from[i] + from, width - from);
}

void fetch_keys(int depth) {
    from = min(depth + lane % DEPTHS * 4, (width - 1) & ~3);
    EACH_LOAD(fetch_key)
}

void drop_load(const int i) {
    next[i] = vec4(0.0);
}

void store_key(const int i) {
    tile[to + i * (LANES / DEPTHS * ROW)] = next[i];
}

void store_keys(int turn, int depth) {
    if (depth + lane % DEPTHS * 4 >= width) { EACH_LOAD(drop_load) }
    to = turn * TURN + lane / DEPTHS * ROW + lane % DEPTHS;
    EACH_LOAD(store_key)
}

// Loads values from key `from` on; `store_values` has zeros behind the last.
void fetch_value(const int i) {
    int item = i * LANES + lane, token = min(from + item / COLUMNS, keys - 1);
    int at = min((first_column + item % COLUMNS) * 4, (columns - 1) & ~3);
    next[i] = LOAD(v, V_FROM + place(token) * v_token + at, columns - at);
}

void fetch_values(int first) {
    from = first;
    EACH_LOAD(fetch_value)
}

void drop_value(const int i) {
    if (from + (i * LANES + lane) / COLUMNS >= keys) next[i] = vec4(0.0);
}

void store_value(const int i) {
    tile[to + i * LANES] = next[i];
}

void store_values(int turn, int first) {
    from = first;
    if (first + BV > keys) { EACH_LOAD(drop_value) }
    to = turn * TURN + lane;
    EACH_LOAD(store_value)
}

// Which of the step's keys this invocation's n-th is.
int key_of(const int n) {
    return n * WG_X + column;
}

int k_at;  // where this invocation's first key is at the depths to multiply

void add_scores(const int n) {
    vec4 numbers = tile[k_at + n * WG_X * ROW];
    for (int g = 0; g < GM; ++g) {
        vec4 s = score[n * GM + g];
        s += numbers.x * a[g];
        s += numbers.y * a[GM + g];
        s += numbers.z * a[2 * GM + g];
        s += numbers.w * a[3 * GM + g];
        score[n * GM + g] = s;
    }
}

void add_few_scores(const int n) {
    if (n * WG_X < key_count) add_scores(n);
}

// Adds to the scores the products of a chunk's depths, of queries from `depth` of those in shared
// memory on.
void multiply_scores(int turn, int depth) {
    for (int i = 0; i < DEPTHS; ++i) {
        int at = (depth + 4 * i) * QP + row;
        for (int g = 0; g < GM; ++g) {
            a[g] = q_tile[at + g * WG_Y];
            a[GM + g] = q_tile[at + QP + g * WG_Y];
            a[2 * GM + g] = q_tile[at + 2 * QP + g * WG_Y];
            a[3 * GM + g] = q_tile[at + 3 * QP + g * WG_Y];
        }
        k_at = turn * TURN + column * ROW + i;
        if (key_count > BN - WG_X) {
            EACH_KEY(add_scores)
        } else {
            EACH_KEY(add_few_scores)
        }
    }
}

void add_row(const int i) {
    for (int j = 0; j < VN; ++j) total[i * VN + j] += a[i / 4][i % 4] * b[j];
}

void add_value(int key, int at) {
    for (int g = 0; g < GM; ++g) a[g] = powers[key * QP + g * WG_Y + row];
    for (int j = 0; j < VN; ++j) b[j] = tile[at + j * WG_X + column];
    EACH_ROW(add_row)
}

// Adds to the results the products of a chunk's values and their powers, from `key` of the step on.
void multiply_values(int turn, int key) {
    for (int i = 0; i < BV; i += 4) {
        int at = turn * TURN + i * COLUMNS;
        add_value(key + i, at);
        add_value(key + i + 1, at + COLUMNS);
        add_value(key + i + 2, at + 2 * COLUMNS);
        add_value(key + i + 3, at + 3 * COLUMNS);
    }
}

// Begins the scores of a key: with the mask, since what is loaded before the products takes no
// registers of its own.
void begin_scores(const int n) {
    for (int g = 0; g < GM; ++g) {
#if HAS_MASK
        ivec4 at = min(first_query + (g * WG_Y + row) * 4 + ivec4(0, 1, 2, 3), ivec4(queries - 1));
        at = at * mask_token + (mask_from + min(first_key + key_of(n), keys - 1) * mask_step);
        score[n * GM + g] = vec4(mask[at.x], mask[at.y], mask[at.z], mask[at.w]);
#else
        score[n * GM + g] = vec4(0.0);
#endif
    }
}

void drop_scores(const int n) {
    if (key_of(n) >= key_count)
        for (int g = 0; g < GM; ++g) score[n * GM + g] = vec4(-INFINITE);
}

vec4 greatest[GM];
uvec4 sizes[GM];  // of scores, as bits: infinity is less than NaN

void find_greatest(const int n) {
    for (int g = 0; g < GM; ++g) {
        greatest[g] = max(greatest[g], score[n * GM + g]);
        sizes[g] = max(sizes[g], floatBitsToUint(score[n * GM + g]) & 0x7fffffffu);
    }
}

// Shares the greatest scores of this invocation's keys: infinity where one is infinite or NaN, which
// leaves no softmax.
void share_greatest(const int g) {
    vec4 all = mix(greatest[g], vec4(INFINITE), greaterThan(sizes[g], uvec4(0x7f800000u)));
    parts[column * QUADS + g * WG_Y + row] = all;
}

void decay_sums(const int g) {
    vec4 now = most[g];
    for (int c = 0; c < WG_X; ++c) now = max(now, parts[c * QUADS + g * WG_Y + row]);
    less[g] = decayed(now - most[g]);
    most[g] = now;
    sum[g] *= less[g];
}

void decay_results(const int i) {
    for (int j = 0; j < VN; ++j) total[i * VN + j] *= less[i / 4][i % 4];
}

void share_powers(const int n) {
    for (int g = 0; g < GM; ++g) {
        vec4 power = decayed(most[g] - score[n * GM + g]);
        sum[g] += power;
        powers[key_of(n) * QP + g * WG_Y + row] = power;
    }
}

void share_sum(const int g) {
    vec4 all = sum[g];
    for (int i = 0; i < 4; ++i)
        if (!is_finite(most[g][i])) all[i] = NAN;
    parts[column * QUADS + g * WG_Y + row] = all;
}

void find_sum(const int g) {
    vec4 all = vec4(0.0);
    for (int c = 0; c < WG_X; ++c) all += parts[c * QUADS + g * WG_Y + row];
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
    if (width <= QD) load_queries(0);
    find_keys(0);
    fetch_keys(0);
    store_keys(0, 0);
    wait();
    int turn = 0;
    for (first_key = 0; first_key < keys; first_key += BN) {
        key_count = min(BN, keys - first_key);
        EACH_KEY(begin_scores)
        int depth = 0;
        for (; depth + BK < width; depth += BK) {
            if (width > QD && depth % QD == 0) {
                load_queries(depth);
                wait();
            }
            fetch_keys(depth + BK);
            if (busy) multiply_scores(turn, depth % QD);
            turn = 1 - turn;
            store_keys(turn, depth + BK);
            wait();
        }
        if (width > QD && depth % QD == 0) {
            load_queries(depth);
            wait();
        }
        fetch_values(first_key);
        if (busy) {
            multiply_scores(turn, depth % QD);
            if (key_count < BN) { EACH_KEY(drop_scores) }
            for (int g = 0; g < GM; ++g) {
                greatest[g] = vec4(-INFINITE);
                sizes[g] = uvec4(0u);
            }
            EACH_KEY(find_greatest)
            EACH_GROUP(share_greatest)
        }
        turn = 1 - turn;
        store_values(turn, first_key);
        wait();
        if (busy) {
            EACH_GROUP(decay_sums)
            EACH_ROW(decay_results)
            EACH_KEY(share_powers)
        }
        wait();
        int key = 0;
        for (; key + BV < key_count; key += BV) {
            fetch_values(first_key + key + BV);
            if (busy) multiply_values(turn, key);
            turn = 1 - turn;
            store_values(turn, first_key + key + BV);
            wait();
        }
        find_keys(first_key + BN);
        fetch_keys(0);
        if (busy) multiply_values(turn, key);
        turn = 1 - turn;
        store_keys(turn, 0);
        wait();
    }
    EACH_GROUP(share_sum)
    wait();
    EACH_GROUP(find_sum)
    EACH_ROW(finish)
}
