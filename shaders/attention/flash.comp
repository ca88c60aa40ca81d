#version 310 es
// softmax(scale Q K^T + mask) V of a head (Vaswani et al. 2017) with its scores in registers (Dao et
// al. 2022): a workgroup takes WG_Y TM queries and 4 WG_X VN columns of the values, walks along the
// keys WG_X TN at a time, and keeps for each query the greatest score so far and the sum of the
// weights, exp(score - maximum) (Milakov and Gimelshein 2018).
//
// For each step along the keys: an invocation has the scores of TM queries and TN keys, by queries
// and keys that come BK depths at a time through shared memory, row by row; weights of these, and
// values that they are multiplied with, come PN WG_X keys at a time through the same memory. What
// comes next is loaded while the present is multiplied. NVIDIA's driver gives the workgroups of a
// multiprocessor 48 KiB together, so of those that take little more are there while one waits. As in
// common/tile.glsl, runs of four invocations cover 2 x 2 of the tile. Scores are vec4 of four queries
// each, so that the softmax is one of vectors.
//
// Where there are few workgroups, each walks along its keys in SLICES at once, which are joined at the
// end; and of partial attention a workgroup has some of the keys, and stores what AttentionSum joins.
//
// NVIDIA's compiler does not unroll long loops, and keeps arrays that these index in memory, for the
// whole kernel: what is done to each key, group, row or column of an invocation is called in the text.
// But to compile long texts takes seconds, so there is one for all depths.
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
#define TN 8
#endif
#ifndef VN
#define VN 1
#endif
#ifndef PN
#define PN 1
#endif
#ifndef BK
#define BK 16
#endif
#ifndef SLICES
#define SLICES 1
#endif
#include "attention/operands.glsl"
#define LANES (WG_X * WG_Y)
#define BQ (WG_Y * TM)       // queries of a workgroup
#define BN (WG_X * TN)       // keys of a step
#define COLUMNS (WG_X * VN)  // of values, in vec4
#define GM (TM / 4)          // groups of four queries of an invocation
#define DEPTHS (BK / 4)      // of a chunk, in vec4
#define QUADS (BQ / 4)
#define Q_ROW (TM * DEPTHS + 1)  // from an invocation's queries to those of the next: other banks
#define P_ROW (QUADS + 1)    // from a key's weights to the next
#define P_KEYS (WG_X * PN)   // of a chunk of weights and values
#define K_AT (WG_Y * Q_ROW)  // where keys are, behind queries
#define TILE (K_AT + BN * DEPTHS + WG_X)  // of a slice
#define V_ITEMS (P_KEYS * COLUMNS)
#define P_AT V_ITEMS         // where weights are, behind values
#define Q_LOADS (TM * DEPTHS / WG_X)  // of a chunk, by each invocation
#define K_LOADS (TN * DEPTHS / WG_Y)
#define V_LOADS ((V_ITEMS + LANES - 1) / LANES)
#if Q_LOADS * WG_X != TM * DEPTHS || K_LOADS * WG_Y != TN * DEPTHS
#error TM BK / 4 must be a multiple of WG_X, TN BK / 4 of WG_Y
#endif
// Where a key's depths are: runs of DEPTHS vec4, changed places within so that the same depth of
// WG_X neighbours is in other banks, as are all depths of neighbours that are stored at once.
#if DEPTHS <= 8 && WG_X % 8 == 0 && LANES / DEPTHS % 8 == 0
#define OTHER_BANK(key) ((key) * DEPTHS / 8 & (DEPTHS - 1))
#else
#define OTHER_BANK(key) 0
#endif
#if LANES % (TM * DEPTHS) != 0 || LANES % COLUMNS != 0
#error LANES must be a multiple of TM BK / 4 and of WG_X VN: each loads the same depths and columns
#endif
#if BK % 4 != 0 || P_AT + P_KEYS * P_ROW > TILE
#error BK must be a multiple of four, and so large that values and weights have room
#endif
#if SLICES > 1 && (VN * LANES > TILE || 2 * QUADS > TILE)
#error BK must be so large that a row of results of all invocations has room
#endif
#if PARTIAL && !WIDE
#error parts have results of whole vec4
#endif
#define EACH_OF_1(call) call(0);
#define EACH_OF_2(call) call(0); call(1);
#define EACH_OF_4(call) call(0); call(1); call(2); call(3);
#define EACH_OF_8(call) call(0); call(1); call(2); call(3); call(4); call(5); call(6); call(7);
#if VN == 1
#define EACH_COLUMN_OF(i, call) call(i, 0);
#elif VN == 2
#define EACH_COLUMN_OF(i, call) call(i, 0); call(i, 1);
#elif VN == 4
#define EACH_COLUMN_OF(i, call) call(i, 0); call(i, 1); call(i, 2); call(i, 3);
#else
#error VN must be 1, 2 or 4
#endif
#if TM == 4
#define EACH_GROUP EACH_OF_1
#define EACH_GROUP_OF(n, call) call(n, 0);
#define EACH_ROW EACH_OF_4
#elif TM == 8
#define EACH_GROUP EACH_OF_2
#define EACH_GROUP_OF(n, call) call(n, 0); call(n, 1);
#define EACH_ROW EACH_OF_8
#else
#error TM must be 4 or 8
#endif
#if TN == 4
#define EACH_KEY EACH_OF_4
#elif TN == 8
#define EACH_KEY EACH_OF_8
#else
#error TN must be 4 or 8
#endif
#if Q_LOADS == 1
#define EACH_Q_LOAD EACH_OF_1
#elif Q_LOADS == 2
#define EACH_Q_LOAD EACH_OF_2
#elif Q_LOADS == 4
#define EACH_Q_LOAD EACH_OF_4
#elif Q_LOADS == 8
#define EACH_Q_LOAD EACH_OF_8
#else
#error Q_LOADS must be a power of two up to 8
#endif
#if K_LOADS == 1
#define EACH_K_LOAD EACH_OF_1
#elif K_LOADS == 2
#define EACH_K_LOAD EACH_OF_2
#elif K_LOADS == 4
#define EACH_K_LOAD EACH_OF_4
#elif K_LOADS == 8
#define EACH_K_LOAD EACH_OF_8
#else
#error K_LOADS must be a power of two up to 8
#endif
#if V_LOADS == 1
#define EACH_V_LOAD EACH_OF_1
#elif V_LOADS == 2
#define EACH_V_LOAD EACH_OF_2
#elif V_LOADS == 4
#define EACH_V_LOAD EACH_OF_4
#elif V_LOADS == 8
#define EACH_V_LOAD EACH_OF_8
#else
#error V_LOADS must be a power of two up to 8
#endif
// Where an operand's numbers are, in vec4 with WIDE; four from there on, of which `left`, at least
// one, are there.
#if WIDE
#define PLACE(of_number) ((of_number) >> 2)
#define LOAD(operand, at, left) operand[at]
#else
#define PLACE(of_number) (of_number)
#define LOAD FOUR
#endif
#define INFINITE uintBitsToFloat(0x7f800000u)
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = SLICES) in;

// Queries and keys, then values and weights; where weights go, what rows have in common: greatest
// scores, or sums, of each invocation's keys.
shared vec4 tile[SLICES * TILE];
#if SLICES > 1
int tile_at;  // where this slice's tile begins
#else
#define tile_at 0
#endif
#if PARTIAL
uniform int parts, part_keys, out_part;
int part;  // of this workgroup
#else
#define part 0
#define part_keys keys
#endif

int lane, row, column;          // this invocation's place in the tile
int first_query, first_column;  // of this workgroup; the column in vec4
int first_key, key_count;       // of this step
int end_key;                    // behind the last of this workgroup
int q_from[Q_LOADS], k_from[K_LOADS];  // where the rows begin that this invocation loads
int v_column, v_from;           // of values, and where the first key's are
int from;                       // of what is loaded and stored
int q_to, k_to, k_bank;         // where this invocation stores; where its keys' first depth is
vec4 q_next[Q_LOADS], k_next[K_LOADS], v_next[V_LOADS];  // what was loaded ahead
vec4 score[TN * GM], total[TM * VN];
vec4 a[TM], b[VN];              // what is multiplied: queries at four depths, or weights; values
// Of each query: the greatest score, the sum of the weights of this invocation's keys, and what those
// of former steps are to be multiplied by.
vec4 maximum[GM], sum[GM], rescale[GM];

// An invocation's i-th query.
int query_of(int i) {
    return first_query + row * TM + i;
}

void find_query(const int i) {
    int query = first_query + i * (LANES / DEPTHS) + lane / DEPTHS;
    q_from[i] = PLACE(Q_FROM + place(min(query, queries - 1)) * q_token);
}

void find_key(const int i) {
    int key = min(from + i * (LANES / DEPTHS) + lane / DEPTHS, keys - 1);
    k_from[i] = PLACE(K_FROM + place(key) * k_token);
}

// Finds where the keys lie that this invocation loads of the step from `first` on.
void find_keys(int first) {
    from = first;
    EACH_K_LOAD(find_key)
}

void fetch_query(const int i) {
    q_next[i] = LOAD(q, q_from[i] + PLACE(from), width - from);
}

void fetch_key(const int i) {
    k_next[i] = LOAD(k, k_from[i] + PLACE(from), width - from);
}

// Loads queries and keys from a depth on. No load is tested, which would make it be waited for: what
// is behind the last query, key or depth is a number before it, and `store_scores` has zeros behind
// the last depth.
void fetch_scores(int depth) {
    from = min(depth + lane % DEPTHS * 4, (width - 1) & ~3);
    EACH_Q_LOAD(fetch_query)
    EACH_K_LOAD(fetch_key)
}

void drop_query(const int i) {
    q_next[i] = vec4(0.0);
}

void drop_key(const int i) {
    k_next[i] = vec4(0.0);
}

void store_query(const int i) {
    tile[q_to + i * (LANES + LANES / (TM * DEPTHS))] = q_next[i] * scale;
}

void store_key(const int i) {
    tile[k_to + i * LANES] = k_next[i];
}

void store_scores(int depth) {
    if (depth + lane % DEPTHS * 4 >= width) {
        EACH_Q_LOAD(drop_query)
        EACH_K_LOAD(drop_key)
    }
    EACH_Q_LOAD(store_query)
    EACH_K_LOAD(store_key)
}

void fetch_value(const int i) {
    int key = place(min(from + i * (LANES / COLUMNS), keys - 1));
    v_next[i] = LOAD(v, v_from + key * PLACE(v_token), columns - v_column);
}

// Loads values from key `first` on; `store_values` has zeros behind the last.
void fetch_values(int first) {
    from = first + lane / COLUMNS;
    EACH_V_LOAD(fetch_value)
}

void drop_value(const int i) {
    if (from + i * (LANES / COLUMNS) >= end_key) v_next[i] = vec4(0.0);
}

void store_value(const int i) {
    if (V_ITEMS % LANES == 0 || i * LANES + lane < V_ITEMS) tile[tile_at + i * LANES + lane] = v_next[i];
}

void store_values(int first) {
    from = first + lane / COLUMNS;
    if (first + P_KEYS > end_key) { EACH_V_LOAD(drop_value) }
    EACH_V_LOAD(store_value)
}

// Which of the step's keys this invocation's n-th is.
int key_of(const int n) {
    return n * WG_X + column;
}

int q_at, k_at;  // where this invocation's queries and keys are at the depths to multiply
vec4 numbers;    // of a key at these depths

// Loads four queries at four depths, as vec4 of queries.
void take_queries(const int g) {
    vec4 x = tile[q_at + 4 * g * DEPTHS], y = tile[q_at + (4 * g + 1) * DEPTHS];
    vec4 z = tile[q_at + (4 * g + 2) * DEPTHS], w = tile[q_at + (4 * g + 3) * DEPTHS];
    a[4 * g] = vec4(x.x, y.x, z.x, w.x);
    a[4 * g + 1] = vec4(x.y, y.y, z.y, w.y);
    a[4 * g + 2] = vec4(x.z, y.z, z.z, w.z);
    a[4 * g + 3] = vec4(x.w, y.w, z.w, w.w);
}

void add_group(const int n, const int g) {
    vec4 s = score[n * GM + g];
    s += numbers.x * a[4 * g];
    s += numbers.y * a[4 * g + 1];
    s += numbers.z * a[4 * g + 2];
    s += numbers.w * a[4 * g + 3];
    score[n * GM + g] = s;
}

void add_scores(const int n) {
    numbers = tile[k_at + n * WG_X * DEPTHS];
    EACH_GROUP_OF(n, add_group)
}

void add_few_scores(const int n) {
    if (n * WG_X < key_count) {
        numbers = tile[k_at + n * WG_X * DEPTHS];
        EACH_GROUP_OF(n, add_group)
    }
}

// Loads queries at the i-th four depths of a chunk, and finds where keys are there.
void take_depths(int i) {
    q_at = tile_at + row * Q_ROW + i;
    k_at = tile_at + K_AT + (k_bank ^ i);
    EACH_GROUP(take_queries)
}

// Adds to the scores the products of a chunk's depths.
void multiply_scores() {
    if (key_count > BN - WG_X) {
        for (int i = 0; i < DEPTHS; ++i) {
            take_depths(i);
            EACH_KEY(add_scores)
        }
    } else {
        for (int i = 0; i < DEPTHS; ++i) {
            take_depths(i);
            EACH_KEY(add_few_scores)
        }
    }
}

int p_at, v_at;  // where this invocation's weights and values of a key are

void add_result(const int i, const int j) {
    total[i * VN + j] += a[i / 4][i % 4] * b[j];
}

void add_row(const int i) {
    EACH_COLUMN_OF(i, add_result)
}

void take_weights(const int i, const int g) {
    a[g] = tile[p_at + i * P_ROW + g * WG_Y];
}

void take_value(const int i, const int j) {
    b[j] = tile[v_at + i * COLUMNS + j * WG_X];
}

void add_value(const int i) {
    EACH_GROUP_OF(i, take_weights)
    EACH_COLUMN_OF(i, take_value)
    EACH_ROW(add_row)
}

// Adds to the results the products of a chunk's values and their weights, those of `count` keys.
void multiply_values(int count) {
    v_at = tile_at + column;
    p_at = tile_at + P_AT + row;
#if P_KEYS % 8 == 0
    for (int i = 0; i < P_KEYS; i += 8) {
        if (i > 0 && i >= count) break;
        EACH_OF_8(add_value)
        v_at += 8 * COLUMNS;
        p_at += 8 * P_ROW;
    }
#else
    EACH_OF_4(add_value)
#endif
}

// Begins the scores of a key: with the mask, since what is loaded before the products takes no
// registers of its own.
#if HAS_MASK
void begin_group(const int n, const int g) {
    ivec4 at = min(query_of(4 * g) + ivec4(0, 1, 2, 3), ivec4(queries - 1));
    at = at * mask_token + (mask_from + min(first_key + key_of(n), keys - 1) * mask_step);
    score[n * GM + g] = vec4(mask[at.x], mask[at.y], mask[at.z], mask[at.w]);
}
#else
void begin_group(const int n, const int g) {
    score[n * GM + g] = vec4(0.0);
}
#endif

void begin_scores(const int n) {
    EACH_GROUP_OF(n, begin_group)
}

void drop_group(const int n, const int g) {
    score[n * GM + g] = vec4(-INFINITE);
}

void drop_scores(const int n) {
    if (key_of(n) >= key_count) { EACH_GROUP_OF(n, drop_group) }
}

// Of each query the greatest score of this invocation's keys, and the greatest of their bits without
// signs, which tell of a NaN: a sum of the scores would not, as two finite ones may be an infinity
// together, which with that of a mask or of a key past the end is NaN, too.
vec4 greatest[GM];
uvec4 greatest_bits[GM];

void begin_maxima(const int g) {
    greatest[g] = vec4(-INFINITE);
    greatest_bits[g] = uvec4(0u);
}

void find_group_maxima(const int n, const int g) {
    greatest[g] = max(greatest[g], score[n * GM + g]);
    greatest_bits[g] = max(greatest_bits[g], floatBitsToUint(score[n * GM + g]) & 0x7fffffffu);
}

void find_maxima(const int n) {
    EACH_GROUP_OF(n, find_group_maxima)
}

// Shares the greatest scores of this invocation's keys: infinity where one is infinite or NaN, which
// leaves no softmax.
void share_maxima(const int g) {
    bvec4 is_nan = greaterThan(greatest_bits[g], uvec4(0x7f800000u));
    vec4 all = mix(greatest[g], vec4(INFINITE), is_nan);
    tile[tile_at + P_AT + column * P_ROW + g * WG_Y + row] = all;
}

void rescale_sums(const int g) {
    vec4 now = maximum[g];
    for (int c = 0; c < WG_X; ++c) now = max(now, tile[tile_at + P_AT + c * P_ROW + g * WG_Y + row]);
    rescale[g] = exp_minus(now - maximum[g]);
    maximum[g] = now;
    sum[g] *= rescale[g];
}

void begin_sums(const int g) {
    maximum[g] = vec4(LEAST);
    sum[g] = vec4(0.0);
}

void clear_result(const int i, const int j) {
    total[i * VN + j] = vec4(0.0);
}

void clear_results(const int i) {
    EACH_COLUMN_OF(i, clear_result)
}

void rescale_result(const int i, const int j) {
    total[i * VN + j] *= rescale[i / 4][i % 4];
}

void rescale_results(const int i) {
    EACH_COLUMN_OF(i, rescale_result)
}

void find_group_weights(const int n, const int g) {
    vec4 weight = exp_minus(maximum[g] - score[n * GM + g]);
    sum[g] += weight;
    score[n * GM + g] = weight;
}

void find_weights(const int n) {
    EACH_GROUP_OF(n, find_group_weights)
}

int shared_n;  // the first of PN of its keys whose weights an invocation shares

void share_group_weights(const int n, const int g) {
    int key = n % PN * WG_X + column;
    tile[tile_at + P_AT + key * P_ROW + g * WG_Y + row] = score[n * GM + g];
}

void share_weights(const int n) {
    if (n / PN * PN == shared_n) { EACH_GROUP_OF(n, share_group_weights) }
}

void share_sum(const int g) {
    vec4 all = sum[g];
    for (int i = 0; i < 4; ++i)
        if (!is_finite(maximum[g][i])) all[i] = NAN;
    tile[tile_at + P_AT + column * P_ROW + g * WG_Y + row] = all;
}

void find_sum(const int g) {
    vec4 all = vec4(0.0);
    for (int c = 0; c < WG_X; ++c) all += tile[tile_at + P_AT + c * P_ROW + g * WG_Y + row];
    sum[g] = all;
}

#if SLICES > 1
int slice;  // of the workgroup's keys, which this invocation is in

void share_slice(const int g) {
    if (column != 0) return;
    tile[tile_at + g * WG_Y + row] = maximum[g];
    tile[tile_at + QUADS + g * WG_Y + row] = sum[g];
}

// Finds the greatest scores and the sums of all slices, and what this one's are to be multiplied by.
void join_sums(const int g) {
    int at = g * WG_Y + row;
    vec4 now = tile[at], all = vec4(0.0);
    for (int s = 1; s < SLICES; ++s) now = max(now, tile[s * TILE + at]);
    for (int s = 0; s < SLICES; ++s)
        all += exp_minus(now - tile[s * TILE + at]) * tile[s * TILE + QUADS + at];
    rescale[g] = exp_minus(now - maximum[g]);
    maximum[g] = now;
    sum[g] = all;
}
#endif

int out_at;    // where a row's results go
float factor;  // that they are multiplied by
bool sound;    // whether there are any

#if WIDE
void store_result(const int i, const int j) {
    int at = (first_column + j * WG_X + column) * 4;
    if (at < columns) result[(out_at + at) >> 2] = sound ? total[i * VN + j] * factor : vec4(NOTHING);
}
#else
void store_result(const int i, const int j) {
    int at = (first_column + j * WG_X + column) * 4;
    vec4 four = sound ? total[i * VN + j] * factor : vec4(NOTHING);
    for (int c = 0; c < 4; ++c)
        if (at + c < columns) result[out_at + at + c] = four[c];
}
#endif

// Stores a row's results divided by its sum; nothing that is finite where no score was. Of a part:
// as they are, and behind them the greatest score and the sum, as AttentionSum has them.
#if PARTIAL
void finish(const int i) {
    if (query_of(i) < queries) {
        float all = sum[i / 4][i % 4];
        out_at = OUT_FROM + place(query_of(i)) * out_token + part * out_part;
        if (first_column + column == 0)
            result[(out_at + columns) >> 2] = vec4(maximum[i / 4][i % 4], all, 1.0, 0.0);
        factor = 1.0;
        sound = is_finite(all);
        EACH_COLUMN_OF(i, store_result)
    }
}
#else
void finish(const int i) {
    if (query_of(i) < queries) {
        float all = sum[i / 4][i % 4];
        out_at = OUT_FROM + place(query_of(i)) * out_token;
        factor = 1.0 / all;
        sound = is_finite(all) && all > 0.0;
        EACH_COLUMN_OF(i, store_result)
    }
}
#endif

#if SLICES > 1
// Adds up a row's results of all slices, which one of them stores.
void join_row(const int i) {
    for (int j = 0; j < VN; ++j) tile[tile_at + j * LANES + lane] = total[i * VN + j];
    wait();
    if (slice == i % SLICES) {
        for (int j = 0; j < VN; ++j) {
            vec4 all = tile[j * LANES + lane];
            for (int s = 1; s < SLICES; ++s) all += tile[s * TILE + j * LANES + lane];
            total[i * VN + j] = all;
        }
        finish(i);
    }
    wait();
}
#endif

void main() {
    lane = int(gl_LocalInvocationID.y) * WG_X + int(gl_LocalInvocationID.x);
#if WG_X % 8 == 0 && WG_Y % 4 == 0
    int patch_of_32 = lane / 32;
    column = patch_of_32 % (WG_X / 8) * 8 + lane % 2 + lane / 4 % 4 * 2;
    row = patch_of_32 / (WG_X / 8) * 4 + lane / 2 % 2 + lane / 16 % 2 * 2;
#else
    column = lane % WG_X;
    row = lane / WG_X;
#endif
    int stack = int(WORKGROUP_ID.z);
#if PARTIAL
    part = stack % parts;
    stack /= parts;
#endif
    find_head(stack);
    first_query = int(WORKGROUP_ID.y) * BQ;
    first_column = int(WORKGROUP_ID.x) * COLUMNS;
    int first = part * part_keys, share = part_keys;  // of this slice: its first key, how many
    end_key = min(first + part_keys, keys);
#if SLICES > 1
    slice = int(gl_LocalInvocationID.z);
    tile_at = slice * TILE;
    share = ((part_keys + SLICES - 1) / SLICES + WG_X - 1) / WG_X * WG_X;
    first += slice * share;
#endif
    q_to = tile_at + lane + lane / (TM * DEPTHS);
    k_to = tile_at + K_AT + (lane ^ OTHER_BANK(lane / DEPTHS));
    k_bank = column * DEPTHS | OTHER_BANK(column);
    bool busy = query_of(0) < queries;  // some of its queries are there
    EACH_ROW(clear_results)
    EACH_GROUP(begin_sums)
    EACH_Q_LOAD(find_query)
    v_column = min((first_column + lane % COLUMNS) * 4, (columns - 1) & ~3);
    v_from = PLACE(V_FROM + v_column);
    find_keys(first);
    fetch_scores(0);
    store_scores(0);
    wait();
    for (int done = 0; done < share; done += BN) {
        first_key = first + done;
        key_count = min(min(BN, share - done), end_key - first_key);
        EACH_KEY(begin_scores)
        for (int depth = 0; depth < width; depth += BK) {
            bool more = depth + BK < width;
            if (more) fetch_scores(depth + BK);
            else fetch_values(first_key);
            if (busy) multiply_scores();
            wait();
            if (!more) break;
            store_scores(depth + BK);
            wait();
        }
        if (key_count < BN) { EACH_KEY(drop_scores) }
        EACH_GROUP(begin_maxima)
        EACH_KEY(find_maxima)
        EACH_GROUP(share_maxima)
        store_values(first_key);
        wait();
        EACH_GROUP(rescale_sums)
        EACH_ROW(rescale_results)
        EACH_KEY(find_weights)
        wait();
        shared_n = 0;
        EACH_KEY(share_weights)
        wait();
        for (bool more = true; more;) {
            int count = min(BN, share - done) - shared_n * WG_X;
            shared_n += PN;
            more = count > P_KEYS;
            if (more) {
                fetch_values(first_key + shared_n * WG_X);
            } else {
                find_keys(first_key + BN);
                fetch_scores(0);
            }
            if (busy) multiply_values(count);
            wait();
            if (more) {
                store_values(first_key + shared_n * WG_X);
                EACH_KEY(share_weights)
            } else {
                store_scores(0);
            }
            wait();
        }
    }
    EACH_GROUP(share_sum)
    wait();
    EACH_GROUP(find_sum)
#if SLICES > 1
    wait();
    EACH_GROUP(share_slice)
    wait();
    EACH_GROUP(join_sums)
    EACH_ROW(rescale_results)
    wait();
    EACH_ROW(join_row)
#else
    EACH_ROW(finish)
#endif
}
