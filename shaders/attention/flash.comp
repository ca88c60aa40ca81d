#version 310 es
// softmax(scale Q K^T + mask) V of a head (Vaswani et al. 2017) with the scores in registers (Dao et al.
// 2022): a workgroup computes WG_Y TM queries and 4 WG_X VN columns of the values. It steps along the keys by
// WG_X TN, and keeps for each query the greatest score so far and the sum of the weights,
// exp(score - maximum) (Milakov and Gimelshein 2018).
//
// In each step an invocation computes the scores of TM queries and TN keys, from chunks of queries and keys
// of BK depths in shared memory, row by row. Then weights, and the values that they are multiplied by, pass
// through the same memory in chunks of PN WG_X keys. The next chunk is loaded while one is multiplied.
// NVIDIA's driver gives the workgroups of a multiprocessor 48 KiB together, so another workgroup can run
// while one waits only if each takes little. As in common/tile.glsl, runs of four invocations cover 2 x 2
// of the tile. A score is a vec4 of four queries, so that the softmax is computed by vectors.
//
// Where there are few workgroups, each divides its keys among SLICES, whose sums are merged at the end. For
// partial attention a workgroup has some of the keys, and stores what AttentionSum merges.
//
// NVIDIA's compiler does not unroll long loops, and keeps arrays that they index in memory, for the whole
// kernel: so macros write out the calls for each key, group, row or column of an invocation. But compiling
// long code takes seconds, so the depths are a loop.
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
#define Q_ROW (TM * DEPTHS + 1)  // pitch of an invocation's queries: the next begin in another bank
#define P_ROW (QUADS + 1)    // pitch of a key's weights
#define P_KEYS (WG_X * PN)   // of a chunk of weights and values
#define K_OFFSET (WG_Y * Q_ROW)  // of keys, which follow queries
#define TILE (K_OFFSET + BN * DEPTHS + WG_X)  // vec4 of a slice
#define V_ITEMS (P_KEYS * COLUMNS)
#define P_OFFSET V_ITEMS     // of weights, which follow values
#define Q_LOADS (TM * DEPTHS / WG_X)  // of a chunk, by each invocation
#define K_LOADS (TN * DEPTHS / WG_Y)
#define V_LOADS ((V_ITEMS + LANES - 1) / LANES)
#if Q_LOADS * WG_X != TM * DEPTHS || K_LOADS * WG_Y != TN * DEPTHS
#error TM BK / 4 must be a multiple of WG_X, TN BK / 4 of WG_Y
#endif
// Swizzle of a key's depths, a run of DEPTHS vec4: the same depth of WG_X neighbouring keys is in different
// banks, and so are all depths of keys that are stored at once.
#if DEPTHS <= 8 && WG_X % 8 == 0 && LANES / DEPTHS % 8 == 0
#define SWIZZLE(key) ((key) * DEPTHS / 8 & (DEPTHS - 1))
#else
#define SWIZZLE(key) 0
#endif
#if LANES % (TM * DEPTHS) != 0 || LANES % COLUMNS != 0
#error LANES must be a multiple of TM BK / 4 and of WG_X VN: each loads the same depths and columns
#endif
#if BK % 4 != 0 || P_OFFSET + P_KEYS * P_ROW > TILE
#error BK must be a multiple of four, and large enough for values and weights
#endif
#if SLICES > 1 && (VN * LANES > TILE || 2 * QUADS > TILE)
#error BK must be large enough for a row of results of all invocations
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
// OFFSET: index of an operand's number, in vec4 with WIDE. LOAD: four numbers from an index on, of which `left`,
// at least one, are inside.
#if WIDE
#define OFFSET(number) ((number) >> 2)
#define LOAD(operand, index, left) operand[index]
#else
#define OFFSET(number) (number)
#define LOAD FOUR
#endif
#define INFINITE uintBitsToFloat(0x7f800000u)
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = SLICES) in;

// Queries and keys, then values and weights. In the place of weights also the greatest scores and the sums of
// each invocation's keys, to be reduced over the row.
shared vec4 tile[SLICES * TILE];
#if SLICES > 1
int tile_offset;  // of this slice's tile
#else
#define tile_offset 0
#endif
#if PARTIAL
uniform int parts, part_keys, out_part;
int part;  // of this workgroup
#else
#define part 0
#define part_keys keys
#endif

int lane, row, column;          // this invocation in the slice and in the tile
int first_query, first_column;  // of this workgroup; the column in vec4
int first_key, key_count;       // of this step
int end_key;                    // past the last of this workgroup
int q_offset[Q_LOADS], k_offset[K_LOADS];  // of the rows that this invocation loads
int v_column, v_offset;         // the column of values that this invocation loads, and its offset
int load_first;                 // the first depth or key of what is loaded or stored
int q_target, k_target, k_bank; // where this invocation stores; where its keys' first depth is
vec4 q_next[Q_LOADS], k_next[K_LOADS], v_next[V_LOADS];  // loads of the next chunk
vec4 score[TN * GM], total[TM * VN];
vec4 a[TM], b[VN];              // factors: queries at four depths, or weights; values
// Of each query: the greatest score, the sum of the weights of this invocation's keys, and the factor of the
// sums and results of former steps.
vec4 maximum[GM], sum[GM], rescale[GM];

// An invocation's i-th query.
int query_of(int i) {
    return first_query + row * TM + i;
}

void locate_query(const int i) {
    int query = first_query + i * (LANES / DEPTHS) + lane / DEPTHS;
    q_offset[i] = OFFSET(Q_FROM + place(min(query, queries - 1)) * q_token);
}

void locate_key(const int i) {
    int key = min(load_first + i * (LANES / DEPTHS) + lane / DEPTHS, keys - 1);
    k_offset[i] = OFFSET(K_FROM + place(key) * k_token);
}

// Computes the offsets of the keys that this invocation loads in the step from key `first_loaded` on.
void locate_keys(int first_loaded) {
    load_first = first_loaded;
    EACH_K_LOAD(locate_key)
}

void load_query(const int i) {
    q_next[i] = LOAD(q, q_offset[i] + OFFSET(load_first), width - load_first);
}

void load_key(const int i) {
    k_next[i] = LOAD(k, k_offset[i] + OFFSET(load_first), width - load_first);
}

// Loads queries and keys from a depth on. No load depends on a condition, for which it would have to be waited
// for: loads past the last query, key or depth repeat an earlier one, and `store_chunk` stores zeros for depths
// past the last.
void load_chunk(int depth) {
    load_first = min(depth + lane % DEPTHS * 4, (width - 1) & ~3);
    EACH_Q_LOAD(load_query)
    EACH_K_LOAD(load_key)
}

void clear_query(const int i) {
    q_next[i] = vec4(0.0);
}

void clear_key(const int i) {
    k_next[i] = vec4(0.0);
}

void store_query(const int i) {
    tile[q_target + i * (LANES + LANES / (TM * DEPTHS))] = q_next[i] * scale;
}

void store_key(const int i) {
    tile[k_target + i * LANES] = k_next[i];
}

void store_chunk(int depth) {
    if (depth + lane % DEPTHS * 4 >= width) {
        EACH_Q_LOAD(clear_query)
        EACH_K_LOAD(clear_key)
    }
    EACH_Q_LOAD(store_query)
    EACH_K_LOAD(store_key)
}

void load_value(const int i) {
    int key = place(min(load_first + i * (LANES / COLUMNS), keys - 1));
    v_next[i] = LOAD(v, v_offset + key * OFFSET(v_token), columns - v_column);
}

// Loads values from key `first` on; `store_values` stores zeros past the last.
void load_values(int first) {
    load_first = first + lane / COLUMNS;
    EACH_V_LOAD(load_value)
}

void clear_value(const int i) {
    if (load_first + i * (LANES / COLUMNS) >= end_key) v_next[i] = vec4(0.0);
}

void store_value(const int i) {
    if (V_ITEMS % LANES == 0 || i * LANES + lane < V_ITEMS) tile[tile_offset + i * LANES + lane] = v_next[i];
}

void store_values(int first) {
    load_first = first + lane / COLUMNS;
    if (first + P_KEYS > end_key) { EACH_V_LOAD(clear_value) }
    EACH_V_LOAD(store_value)
}

// The index in the step of this invocation's n-th key.
int key_of(const int n) {
    return n * WG_X + column;
}

int q_index, k_index;  // of this invocation's queries and keys at the four depths to multiply
vec4 numbers;          // of a key at these depths

// Loads four queries at four depths, transposed to vec4 of queries.
void load_shared_queries(const int g) {
    vec4 x = tile[q_index + 4 * g * DEPTHS], y = tile[q_index + (4 * g + 1) * DEPTHS];
    vec4 z = tile[q_index + (4 * g + 2) * DEPTHS], w = tile[q_index + (4 * g + 3) * DEPTHS];
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
    numbers = tile[k_index + n * WG_X * DEPTHS];
    EACH_GROUP_OF(n, add_group)
}

void add_few_scores(const int n) {
    if (n * WG_X < key_count) {
        numbers = tile[k_index + n * WG_X * DEPTHS];
        EACH_GROUP_OF(n, add_group)
    }
}

// Loads queries at the i-th four depths of a chunk, and computes the index of keys there.
void load_shared_depths(int i) {
    q_index = tile_offset + row * Q_ROW + i;
    k_index = tile_offset + K_OFFSET + (k_bank ^ i);
    EACH_GROUP(load_shared_queries)
}

// Adds the products of a chunk's depths to the scores.
void multiply_scores() {
    if (key_count > BN - WG_X) {
        for (int i = 0; i < DEPTHS; ++i) {
            load_shared_depths(i);
            EACH_KEY(add_scores)
        }
    } else {
        for (int i = 0; i < DEPTHS; ++i) {
            load_shared_depths(i);
            EACH_KEY(add_few_scores)
        }
    }
}

int p_index, v_index;  // of this invocation's weights and values of a key

void add_result(const int i, const int j) {
    total[i * VN + j] += a[i / 4][i % 4] * b[j];
}

void add_row(const int i) {
    EACH_COLUMN_OF(i, add_result)
}

void load_shared_weights(const int i, const int g) {
    a[g] = tile[p_index + i * P_ROW + g * WG_Y];
}

void load_shared_value(const int i, const int j) {
    b[j] = tile[v_index + i * COLUMNS + j * WG_X];
}

void add_value(const int i) {
    EACH_GROUP_OF(i, load_shared_weights)
    EACH_COLUMN_OF(i, load_shared_value)
    EACH_ROW(add_row)
}

// Adds the products of a chunk's values and weights, of `count` keys, to the results.
void multiply_values(int count) {
    v_index = tile_offset + column;
    p_index = tile_offset + P_OFFSET + row;
#if P_KEYS % 8 == 0
    for (int i = 0; i < P_KEYS; i += 8) {
        if (i > 0 && i >= count) break;
        EACH_OF_8(add_value)
        v_index += 8 * COLUMNS;
        p_index += 8 * P_ROW;
    }
#else
    EACH_OF_4(add_value)
#endif
}

// Initializes the scores of a key by the mask: if it is loaded before the products, it takes no registers of
// its own.
#if HAS_MASK
void begin_group(const int n, const int g) {
    ivec4 index = min(query_of(4 * g) + ivec4(0, 1, 2, 3), ivec4(queries - 1));
    index = index * mask_token + (mask_from + min(first_key + key_of(n), keys - 1) * mask_step);
    score[n * GM + g] = vec4(mask[index.x], mask[index.y], mask[index.z], mask[index.w]);
}
#else
void begin_group(const int n, const int g) {
    score[n * GM + g] = vec4(0.0);
}
#endif

void begin_scores(const int n) {
    EACH_GROUP_OF(n, begin_group)
}

void exclude_group(const int n, const int g) {
    score[n * GM + g] = vec4(-INFINITE);
}

void exclude_scores(const int n) {
    if (key_of(n) >= key_count) { EACH_GROUP_OF(n, exclude_group) }
}

// Of each query the greatest score of this invocation's keys, and their greatest bits without signs, which
// show a NaN. A sum of the scores would not: two finite ones may add up to an infinity, which is NaN with that
// of a mask or of a key past the end.
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

// Shares the greatest scores of this invocation's keys: infinity, without a softmax, where one is infinite or
// NaN.
void share_maxima(const int g) {
    bvec4 is_nan = greaterThan(greatest_bits[g], uvec4(0x7f800000u));
    vec4 all = mix(greatest[g], vec4(INFINITE), is_nan);
    tile[tile_offset + P_OFFSET + column * P_ROW + g * WG_Y + row] = all;
}

void rescale_sums(const int g) {
    vec4 now = maximum[g];
    for (int c = 0; c < WG_X; ++c) now = max(now, tile[tile_offset + P_OFFSET + c * P_ROW + g * WG_Y + row]);
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

int shared_n;  // the first of the PN keys whose weights an invocation shares

void share_group_weights(const int n, const int g) {
    int key = n % PN * WG_X + column;
    tile[tile_offset + P_OFFSET + key * P_ROW + g * WG_Y + row] = score[n * GM + g];
}

void share_weights(const int n) {
    if (n / PN * PN == shared_n) { EACH_GROUP_OF(n, share_group_weights) }
}

void share_sum(const int g) {
    vec4 all = sum[g];
    for (int i = 0; i < 4; ++i)
        if (!is_finite(maximum[g][i])) all[i] = NAN;
    tile[tile_offset + P_OFFSET + column * P_ROW + g * WG_Y + row] = all;
}

void find_sum(const int g) {
    vec4 all = vec4(0.0);
    for (int c = 0; c < WG_X; ++c) all += tile[tile_offset + P_OFFSET + c * P_ROW + g * WG_Y + row];
    sum[g] = all;
}

#if SLICES > 1
int slice;  // of the workgroup's keys

void share_slice(const int g) {
    if (column != 0) return;
    tile[tile_offset + g * WG_Y + row] = maximum[g];
    tile[tile_offset + QUADS + g * WG_Y + row] = sum[g];
}

// Merges the greatest scores and the sums of all slices, and computes the factor of this slice's results.
void merge_sums(const int g) {
    int index = g * WG_Y + row;
    vec4 now = tile[index], all = vec4(0.0);
    for (int s = 1; s < SLICES; ++s) now = max(now, tile[s * TILE + index]);
    for (int s = 0; s < SLICES; ++s)
        all += exp_minus(now - tile[s * TILE + index]) * tile[s * TILE + QUADS + index];
    rescale[g] = exp_minus(now - maximum[g]);
    maximum[g] = now;
    sum[g] = all;
}
#endif

int out_offset;  // of a row's results
float factor;    // of a row's results
bool valid;      // whether the row has a softmax

#if WIDE
void store_result(const int i, const int j) {
    int out_column = (first_column + j * WG_X + column) * 4;
    if (out_column < columns)
        result[(out_offset + out_column) >> 2] = valid ? total[i * VN + j] * factor : vec4(NOTHING);
}
#else
void store_result(const int i, const int j) {
    int out_column = (first_column + j * WG_X + column) * 4;
    vec4 four = valid ? total[i * VN + j] * factor : vec4(NOTHING);
    for (int c = 0; c < 4; ++c)
        if (out_column + c < columns) result[out_offset + out_column + c] = four[c];
}
#endif

// Stores a row's results divided by its sum, or NOTHING where no score was finite. For a part: stores them
// undivided, followed by the greatest score and the sum, as AttentionSum reads them.
#if PARTIAL
void finish(const int i) {
    if (query_of(i) < queries) {
        float all = sum[i / 4][i % 4];
        out_offset = OUT_FROM + place(query_of(i)) * out_token + part * out_part;
        if (first_column + column == 0)
            result[(out_offset + columns) >> 2] = vec4(maximum[i / 4][i % 4], all, 1.0, 0.0);
        factor = 1.0;
        valid = is_finite(all);
        EACH_COLUMN_OF(i, store_result)
    }
}
#else
void finish(const int i) {
    if (query_of(i) < queries) {
        float all = sum[i / 4][i % 4];
        out_offset = OUT_FROM + place(query_of(i)) * out_token;
        factor = 1.0 / all;
        valid = is_finite(all) && all > 0.0;
        EACH_COLUMN_OF(i, store_result)
    }
}
#endif

#if SLICES > 1
// Adds a row's results of all slices, which one of them stores.
void merge_row(const int i) {
    for (int j = 0; j < VN; ++j) tile[tile_offset + j * LANES + lane] = total[i * VN + j];
    workgroup_barrier();
    if (slice == i % SLICES) {
        for (int j = 0; j < VN; ++j) {
            vec4 all = tile[j * LANES + lane];
            for (int s = 1; s < SLICES; ++s) all += tile[s * TILE + j * LANES + lane];
            total[i * VN + j] = all;
        }
        finish(i);
    }
    workgroup_barrier();
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
    int begin_key = part * part_keys, share = part_keys;  // of this slice: the first key and the count
    end_key = min(begin_key + part_keys, keys);
#if SLICES > 1
    slice = int(gl_LocalInvocationID.z);
    tile_offset = slice * TILE;
    share = ((part_keys + SLICES - 1) / SLICES + WG_X - 1) / WG_X * WG_X;
    begin_key += slice * share;
#endif
    q_target = tile_offset + lane + lane / (TM * DEPTHS);
    k_target = tile_offset + K_OFFSET + (lane ^ SWIZZLE(lane / DEPTHS));
    k_bank = column * DEPTHS | SWIZZLE(column);
    bool busy = query_of(0) < queries;  // whether any of its queries is inside
    EACH_ROW(clear_results)
    EACH_GROUP(begin_sums)
    EACH_Q_LOAD(locate_query)
    v_column = min((first_column + lane % COLUMNS) * 4, (columns - 1) & ~3);
    v_offset = OFFSET(V_FROM + v_column);
    locate_keys(begin_key);
    load_chunk(0);
    store_chunk(0);
    workgroup_barrier();
    for (int done = 0; done < share; done += BN) {
        first_key = begin_key + done;
        key_count = min(min(BN, share - done), end_key - first_key);
        EACH_KEY(begin_scores)
        for (int depth = 0; depth < width; depth += BK) {
            bool more = depth + BK < width;
            if (more) load_chunk(depth + BK);
            else load_values(first_key);
            if (busy) multiply_scores();
            workgroup_barrier();
            if (!more) break;
            store_chunk(depth + BK);
            workgroup_barrier();
        }
        if (key_count < BN) { EACH_KEY(exclude_scores) }
        EACH_GROUP(begin_maxima)
        EACH_KEY(find_maxima)
        EACH_GROUP(share_maxima)
        store_values(first_key);
        workgroup_barrier();
        EACH_GROUP(rescale_sums)
        EACH_ROW(rescale_results)
        EACH_KEY(find_weights)
        workgroup_barrier();
        shared_n = 0;
        EACH_KEY(share_weights)
        workgroup_barrier();
        for (bool more = true; more;) {
            int count = min(BN, share - done) - shared_n * WG_X;
            shared_n += PN;
            more = count > P_KEYS;
            if (more) {
                load_values(first_key + shared_n * WG_X);
            } else {
                locate_keys(first_key + BN);
                load_chunk(0);
            }
            if (busy) multiply_values(count);
            workgroup_barrier();
            if (more) {
                store_values(first_key + shared_n * WG_X);
                EACH_KEY(share_weights)
            } else {
                store_chunk(0);
            }
            workgroup_barrier();
        }
    }
    EACH_GROUP(share_sum)
    workgroup_barrier();
    EACH_GROUP(find_sum)
#if SLICES > 1
    workgroup_barrier();
    EACH_GROUP(share_slice)
    workgroup_barrier();
    EACH_GROUP(merge_sums)
    EACH_ROW(rescale_results)
    workgroup_barrier();
    EACH_ROW(merge_row)
#else
    EACH_ROW(finish)
#endif
}
