#version 310 es
// C = A B through shared memory: a workgroup computes a tile of
// WG_Y TM rows by WG_X TN columns and walks along k in steps of BK, while the next step's operands
// are on their way into registers.
//
// SLICES of a workgroup share each step's depths: few large tiles then still make for many
// invocations. AHEAD says when the next steps are loaded and stored: see `walk` of common/tile.glsl.
// With CENTRED rows of x are normalised (normed_matmul): each workgroup finds the mean and the
// deviation of its rows in a walk before.
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
#ifndef BK
#define BK 8
#endif
#ifndef SLICES
#define SLICES 1
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#ifndef BATCHED
#define BATCHED 0
#endif
#ifndef CENTRED
#define CENTRED 0
#endif
#include "common/launch.glsl"
#include "matmul/operands.glsl"
#include "matmul/vector.glsl"
#define A_BY_ROWS X_IN_C
#define B_BY_DEPTHS WEIGHT_IN_R4
#include "common/tile.glsl"
uniform int m, n, k;
uniform int x_first, x_row, x_rows, out_row;  // floats, multiples of 4
uniform int weight_row, weight_rows, weight_matrix;
uniform int image_rows;
#define PROLOGUE_CHANNELS k
#include <prologue>

int batch = 0;
#if CENTRED
#define CENTRED_ROWS BM
#define ROW_INVOCATIONS INVOCATIONS
#define ROW_LANES 4
#if 2 * BK * AM < 3 * ROW_LANES * BM
#error too few depths for what lanes find of rows
#endif
#define STATE(i) vec3(a_tile[3 * (i)], a_tile[3 * (i) + 1], a_tile[3 * (i) + 2])
#define SET_STATE(i, v) for (int j = 0; j < 3; ++j) a_tile[3 * (i) + j] = (v)[j]
#include "matmul/centred_rows.glsl"
#endif
#if HAS_PROLOGUE
int fetched = 0;  // the first depth of the step that was fetched
#endif
#if QUANTIZED
FourWords words_next[B_LOADS];  // of b_next
int b_fetched = 0;              // as `fetched`, of B
#endif
int a_from[A_LOADS], b_from[B_LOADS];  // where the loads of the first step lie, in vec4
#if X_IN_C
#define A_STRIDE (x_rows / 4)  // from a depth to the next
#define A_DEPTHS k
#else
#define A_DEPTHS ((k + 3) & ~3)  // rows have whole fours
#endif
#if WEIGHT_IN_R4
#define B_DEPTHS ((k + 3) & ~3)
#else
#define B_STRIDE (weight_rows / 4)
#define B_DEPTHS k
#endif

// Finds where the loads of the first step lie.
void locate_operands() {
    int deepest = max(k - 1, 0);
    for (int i = 0; i < A_LOADS; ++i) {
        ivec2 from = a_item(i * INVOCATIONS + lane);
#if X_IN_C
        a_from[i] = min(from.x, deepest) * A_STRIDE + min(tile_row / 4 + from.y, (m - 1) / 4);
#else
        int of_row = batch * m + min(tile_row + from.y, m - 1);
        a_from[i] = x_first / 4 + of_row * (x_row / 4) + min(from.x, deepest) / 4;
#endif
    }
    for (int i = 0; i < B_LOADS; ++i) {
        ivec2 from = b_item(i * INVOCATIONS + lane);
#if WEIGHT_IN_R4
        int stride = WEIGHT_ROW / 4;
        b_from[i] = batch * (weight_row / 4) + min(from.x, deepest) / 4;
        b_from[i] += min(tile_column * 4 + from.y, n - 1) * stride;
#else
        b_from[i] = batch * (weight_matrix / 4) + min(from.x, deepest) * B_STRIDE;
        b_from[i] += min(tile_column + from.y, (n + 3) / 4 - 1);
#endif
    }
}

// Where along k a step of an operand of so many depths is loaded from: sooner than it begins where it
// would reach behind them. So no load is tested, which would make it be waited for.
int start(int of_step, int depths) {
    return min(of_step * BK, max(depths - BK, 0));
}

void fetch(int of_step) {
    int a_start = start(of_step, A_DEPTHS), b_start = start(of_step, B_DEPTHS);
    for (int i = 0; i < A_LOADS; ++i) {
#if X_IN_C
        a_next[i] = x_at(a_from[i] + a_start * A_STRIDE);
#else
        a_next[i] = x_at(a_from[i] + (a_start >> 2));
#endif
    }
    for (int i = 0; i < B_LOADS; ++i) {
#if QUANTIZED
        words_next[i] = four_words(b_from[i] + (b_start >> 2));
#elif WEIGHT_IN_R4
        b_next[i] = weight_at(b_from[i] + (b_start >> 2));
#else
        b_next[i] = weight_at(b_from[i] + b_start * B_STRIDE);
#endif
    }
#if HAS_PROLOGUE
    fetched = a_start;
#endif
#if QUANTIZED
    b_fetched = b_start;
#endif
}

// Puts what was fetched into shared memory: of x, what the normalisation or the prologue makes of it, and
// of packed weights their numbers. It is done here, and not as they are loaded, so that nobody waits for them before.
void put(int buffer_index) {
#if CENTRED
    for (int i = 0; i < A_LOADS; ++i) {
        vec2 of_row = row_norms[min(a_item(i * INVOCATIONS + lane).y, BM - 1)];
        a_next[i] = (a_next[i] - of_row.x) * of_row.y;
    }
#endif
#if HAS_PROLOGUE
    for (int i = 0; i < A_LOADS; ++i) {
        ivec2 from = a_item(i * INVOCATIONS + lane);
        int depth = min(fetched + from.x, k - 1), at = batch * m + min(tile_row + from.y, m - 1);
        a_next[i] = prologue(a_next[i], depth / 4, at / image_rows);
    }
#endif
#if QUANTIZED
    for (int i = 0; i < B_LOADS; ++i)
        b_next[i] = unpacked(words_next[i], b_from[i] + (b_fetched >> 2));
#endif
    store(buffer_index);
}

// The sums along k: whole steps, and the depths behind them, which `walk` has stored and the slices
// share. They are the last of what was loaded there, and those alone are multiplied: in a row's
// padding may be anything.
void walk_k(const int gm, const int gn) {
    int whole = k / BK, first = whole * BK, buffer_index = whole % 2;
    walk(whole, gm, gn);
    int a_tail = buffer_index * BK + first - start(whole, A_DEPTHS);
    int b_tail = buffer_index * BK + first - start(whole, B_DEPTHS);
    for (int depth = slice; depth < k - first; depth += SLICES) {
        vec4 a[GM], b[GN];
        take(a_tail + depth, b_tail + depth, gm, gn, a, b);
        add(gm, gn, a, b);
    }
}

#if TOGETHER
int columns, out_at;  // in vec4: of the result, and where its first row begins

void finish_at(int of_row, int of_quad, vec4 sums) {
    int at = tile_row + of_row, quad = tile_column + of_quad;
    if (at < m && quad < columns) finish(sums, quad, out_at + at * (out_row / 4) + quad);
}
#endif

void main() {
    place();
#if BATCHED
    batch = int(WORKGROUP_ID.z);
#endif
    locate_operands();
#if CENTRED
    find_row_norms(lane, tile_row, x_first / 4);
#endif

    // Tiles at the edges may have few rows or columns: the rest is not worth multiplying.
#if TOGETHER
    columns = (n + 3) / 4;
#else
    int columns = (n + 3) / 4;  // a global has NVIDIA's compiler take other registers: 1.4% at 4096
#endif
    if (GM > 1 && m - tile_row <= 4 * WG_Y)
        walk_k(1, GN);
    else if (GN > 1 && columns - tile_column <= WG_X)
        walk_k(GM, 1);
    else
        walk_k(GM, GN);
    add_slices();
#if TOGETHER
    out_at = batch * m * (out_row / 4) + out_first / 4;
    finish_together();
#else
    if (slice > 0) return;  // there is none: without it NVIDIA's compiler takes other registers

    int first = batch * m * (out_row / 4) + out_first / 4;
    for (int g = 0; g < GM; ++g) {
        for (int i = 0; i < 4; ++i) {
            int at = tile_row + (g * WG_Y + row) * 4 + i;
            for (int j = 0; j < GN; ++j) {
                int quad = tile_column + j * WG_X + column;
                if (at < m && quad < columns)
                    finish(sum[(g * 4 + i) * GN + j], quad, first + at * (out_row / 4) + quad);
            }
        }
    }
#endif
}
