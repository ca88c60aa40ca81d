#version 310 es
// softmax(scale Q K^T + mask) V of a head (Vaswani et al. 2017) without its scores ever being in
// memory: a workgroup takes WG_Y TM queries and 4 WG_X VN columns of the values, walks along the
// keys 4 WG_X at a time, and keeps for each query the greatest score so far and the sum of the
// powers of what the scores are below it (Milakov and Gimelshein 2018; Dao et al. 2022).
//
// For each step along the keys: scores in registers, by queries and keys that come BK depths at a
// time through shared memory; scores and their powers in shared memory, a row's by PARTS
// invocations; products of these with values, which come BK keys at a time.
#ifndef WG_X
#define WG_X 16
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
#ifndef TM
#define TM 4
#endif
#ifndef VN
#define VN 1
#endif
#ifndef BK
#define BK 16
#endif
#include "attention/operands.glsl"
#define LANES (WG_X * WG_Y)
#define BQ (WG_Y * TM)         // queries of a workgroup
#define BN (4 * WG_X)          // keys of a step
#define COLUMNS (WG_X * VN)    // of values, in vec4
#define AM (BQ + 4)            // other banks for the next depth
#define BP (4 * COLUMNS + 4)
#define PARTS (WG_X / TM)
#define SHARE (BN / PARTS)     // keys of a step that an invocation takes the powers of
#define A_LOADS ((BQ * BK / 4 + LANES - 1) / LANES)
#define B_LOADS ((BK * COLUMNS + LANES - 1) / LANES)
#if PARTS * TM != WG_X || TM % 4 != 0 || BK * AM < LANES + BQ
#error WG_X must be a multiple of TM, TM of four, and BK large enough for a step's maxima
#endif
layout(local_size_x = WG_X, local_size_y = WG_Y) in;

shared float a_tile[BK * AM];  // queries, depth by depth; then what rows have in common
shared float b_tile[BK * BP];  // keys, depth by depth; then values, key by key
shared float powers[BN * AM];  // scores and their powers, key by key

int lane, row, column;          // this invocation's place in the tile
int first_query, first_column;  // of this workgroup
vec4 a_next[A_LOADS], b_next[B_LOADS];
vec4 score[TM], total[TM * VN];

// Loads queries and keys from a depth on, those beyond the last being the last once more.
void fetch_scores(int first, int depth) {
    for (int i = 0; i < A_LOADS; ++i) {
        int item = i * LANES + lane;
        int from = depth + item % (BK / 4) * 4;
        int token = place(min(first_query + item / (BK / 4), queries - 1));
        int at = Q_FROM + token * q_token + from;
        a_next[i] = FOUR(q, at, width - from);
    }
    for (int i = 0; i < (BK * WG_X + LANES - 1) / LANES; ++i) {
        int item = i * LANES + lane;
        int from = depth + item % (BK / 4) * 4;
        int token = place(min(first + item / (BK / 4), keys - 1));
        int at = K_FROM + token * k_token + from;
        b_next[i] = FOUR(k, at, width - from);
    }
}

void store_scores() {
    for (int i = 0; i < A_LOADS; ++i) {
        int item = i * LANES + lane;
        if (BQ * BK / 4 % LANES != 0 && item >= BQ * BK / 4) break;
        int at = item % (BK / 4) * 4 * AM + item / (BK / 4);
        for (int j = 0; j < 4; ++j) a_tile[at + j * AM] = a_next[i][j];
    }
    for (int i = 0; i < (BK * WG_X + LANES - 1) / LANES; ++i) {
        int item = i * LANES + lane;
        if (BK * WG_X % LANES != 0 && item >= BK * WG_X) break;
        int at = item % (BK / 4) * 4 * BP + item / (BK / 4);
        for (int j = 0; j < 4; ++j) b_tile[at + j * BP] = b_next[i][j];
    }
}

// Loads the values of keys from `first` on; behind the last key are zeros.
void fetch_values(int first) {
    for (int i = 0; i < B_LOADS; ++i) {
        int item = i * LANES + lane;
        int key = first + item / COLUMNS, at_column = (first_column + item % COLUMNS) * 4;
        int at = V_FROM + place(key) * v_token + at_column;
        b_next[i] = FOUR(v, at, key < keys ? columns - at_column : 0);
    }
}

void store_values() {
    for (int i = 0; i < B_LOADS; ++i) {
        int item = i * LANES + lane;
        if (BK * COLUMNS % LANES != 0 && item >= BK * COLUMNS) break;
        int at = item / COLUMNS * BP + item % COLUMNS * 4;
        for (int j = 0; j < 4; ++j) b_tile[at + j] = b_next[i][j];
    }
}

vec4 b_at(int depth, int quad) {
    int at = depth * BP + quad * 4;
    return vec4(b_tile[at], b_tile[at + 1], b_tile[at + 2], b_tile[at + 3]);
}

// The products of this workgroup's queries and the keys from `first` on.
void multiply_scores(int first) {
    for (int i = 0; i < TM; ++i) score[i] = vec4(0.0);
    fetch_scores(first, 0);
    for (int depth = 0; depth < width; depth += BK) {
        wait();
        store_scores();
        wait();
        if (depth + BK < width) fetch_scores(first, depth + BK);
        for (int step = 0; step < BK; ++step) {
            vec4 b = b_at(step, column);
            for (int g = 0; g < TM / 4; ++g) {
                int at = step * AM + (g * WG_Y + row) * 4;
                for (int i = 0; i < 4; ++i) score[g * 4 + i] += a_tile[at + i] * b;
            }
        }
    }
}

// The scores of keys from `first` on, where all rows of the workgroup can read them.
void share_scores(int first) {
    for (int g = 0; g < TM / 4; ++g) {
        for (int i = 0; i < 4; ++i) {
            int line = (g * WG_Y + row) * 4 + i;
            vec4 scaled = score[g * 4 + i] * scale;
#if HAS_MASK
            int at = mask_from + min(first_query + line, queries - 1) * mask_token;
            for (int j = 0; j < 4; ++j)
                scaled[j] += mask[at + min(first + column * 4 + j, keys - 1) * mask_step];
#endif
            for (int j = 0; j < 4; ++j) powers[(column * 4 + j) * AM + line] = scaled[j];
        }
    }
}

// Powers in the place of a step's `count` scores, by a row's invocations together. state: the
// greatest score of the row, the sum of this invocation's powers.
vec2 share_powers(vec2 state, int count) {
    int line = lane % BQ, part = lane / BQ;
    int begin = part * SHARE, end = min(begin + SHARE, count);
    float most = state.x;
    for (int key = begin; key < end; ++key) most = greater(most, powers[key * AM + line]);
    a_tile[lane] = most;
    wait();
    for (int i = 0; i < PARTS; ++i) most = greater(most, a_tile[i * BQ + line]);
    float less = decayed(most - state.x), sum = state.y * less;
    for (int key = begin; key < begin + SHARE; ++key) {
        int at = key * AM + line;
        float power = key < end ? decayed(most - powers[at]) : 0.0;
        powers[at] = power;
        sum += power;
    }
    if (part == 0) a_tile[LANES + line] = less;
    return vec2(most, sum);
}

// The values of `count` keys from `first` on, by their powers; the first are loaded already.
void add_values(int first, int count) {
    for (int g = 0; g < TM / 4; ++g) {
        for (int i = 0; i < 4; ++i) {
            float less = a_tile[LANES + (g * WG_Y + row) * 4 + i];
            for (int j = 0; j < VN; ++j) total[(g * 4 + i) * VN + j] *= less;
        }
    }
    for (int key = 0; key < count; key += BK) {
        wait();
        store_values();
        wait();
        if (key + BK < count) fetch_values(first + key + BK);
        for (int step = 0; step < BK; ++step) {
            for (int j = 0; j < VN; ++j) {
                vec4 b = b_at(step, j * WG_X + column);
                for (int g = 0; g < TM / 4; ++g) {
                    int at = (key + step) * AM + (g * WG_Y + row) * 4;
                    for (int i = 0; i < 4; ++i) total[(g * 4 + i) * VN + j] += powers[at + i] * b;
                }
            }
        }
    }
}

// What a row is to be multiplied by: nothing that is finite where no score was.
float divisor(int line) {
    float sum = 0.0;
    for (int i = 0; i < PARTS; ++i) sum += a_tile[i * BQ + line];
    return is_finite(sum) && sum > 0.0 ? 1.0 / sum : NAN;
}

void main() {
    lane = int(gl_LocalInvocationIndex);
#if WG_X % 8 == 0 && WG_Y % 4 == 0
    // Runs of 32 invocations cover 4 x 8 patches of the tile, so that they share words.
    column = lane / 32 % (WG_X / 8) * 8 + lane % 8;
    row = lane / 32 / (WG_X / 8) * 4 + lane / 8 % 4;
#else
    column = lane % WG_X;
    row = lane / WG_X;
#endif
    find_head(int(WORKGROUP_ID.z));
    first_query = int(WORKGROUP_ID.y) * BQ;
    first_column = int(WORKGROUP_ID.x) * COLUMNS;
    for (int i = 0; i < TM * VN; ++i) total[i] = vec4(0.0);
    vec2 state = vec2(LEAST, 0.0);
    for (int first = 0; first < keys; first += BN) {
        int count = min(BN, keys - first);
        multiply_scores(first);
        share_scores(first);
        fetch_values(first);
        wait();
        state = share_powers(state, count);
        wait();
        add_values(first, count);
    }
    wait();
    // Without a finite maximum all of the row is NaN, as differences of infinities are.
    a_tile[lane] = is_finite(state.x) ? state.y : NAN;
    wait();
    for (int g = 0; g < TM / 4; ++g) {
        for (int i = 0; i < 4; ++i) {
            int line = (g * WG_Y + row) * 4 + i;
            float factor = divisor(line);
            bool sound = is_finite(factor);
            int at = OUT_FROM + place(first_query + line) * out_token;
            for (int j = 0; j < VN; ++j) {
                int from = (first_column + j * WG_X + column) * 4;
                if (first_query + line >= queries || from >= columns) continue;
                vec4 found = sound ? total[(g * 4 + i) * VN + j] * factor : vec4(NOTHING);
#if WIDE
                result[(at + from) / 4] = found;
#else
                for (int c = 0; c < 4; ++c)
                    if (from + c < columns) result[at + from + c] = found[c];
#endif
            }
        }
    }
}
