#version 310 es
// C = A B through shared memory: a workgroup computes a tile of WG_Y TM rows by WG_X TN columns and
// steps along k by BK, while the operands of the next step are loaded into registers.
//
// SLICES of a workgroup share each step's depths, so that few large tiles still have many invocations.
// AHEAD says when the next steps are loaded and stored: see `multiply_steps` of common/tile.glsl. With
// CENTRED the rows of x are normalised (normed_matmul): each workgroup first finds the mean and the
// deviation of its rows.
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
#error too few depths for the states of the rows
#endif
#define STATE(i) vec3(a_tile[3 * (i)], a_tile[3 * (i) + 1], a_tile[3 * (i) + 2])
#define SET_STATE(i, v) for (int j = 0; j < 3; ++j) a_tile[3 * (i) + j] = (v)[j]
#include "matmul/centred_rows.glsl"
#endif
#if HAS_PROLOGUE
int loaded_depth = 0;  // the first depth of the step that was loaded
#endif
#if QUANTIZED
FourWords words_next[B_LOADS];  // packed words of b_next
int b_loaded_depth = 0;         // as `loaded_depth`, of B
#endif
int a_offset[A_LOADS], b_offset[B_LOADS];  // offsets of the loads of the first step, in vec4
#if X_IN_C
#define A_STRIDE (x_rows / 4)  // from a depth to the next
#define A_DEPTHS k
#else
#define A_DEPTHS ((k + 3) & ~3)  // rows are padded to whole vec4
#endif
#if WEIGHT_IN_R4
#define B_DEPTHS ((k + 3) & ~3)
#else
#define B_STRIDE (weight_rows / 4)
#define B_DEPTHS k
#endif

// Computes the offsets of the loads of the first step.
void locate_operands() {
    int deepest = max(k - 1, 0);
    for (int i = 0; i < A_LOADS; ++i) {
        ivec2 position = a_position(i * INVOCATIONS + lane);
#if X_IN_C
        a_offset[i] = min(position.x, deepest) * A_STRIDE + min(tile_row / 4 + position.y, (m - 1) / 4);
#else
        int a_row = batch * m + min(tile_row + position.y, m - 1);
        a_offset[i] = x_first / 4 + a_row * (x_row / 4) + min(position.x, deepest) / 4;
#endif
    }
    for (int i = 0; i < B_LOADS; ++i) {
        ivec2 position = b_position(i * INVOCATIONS + lane);
#if WEIGHT_IN_R4
        int stride = WEIGHT_ROW / 4;
        b_offset[i] = batch * (weight_row / 4) + min(position.x, deepest) / 4;
        b_offset[i] += min(tile_column * 4 + position.y, n - 1) * stride;
#else
        b_offset[i] = batch * (weight_matrix / 4) + min(position.x, deepest) * B_STRIDE;
        b_offset[i] += min(tile_column + position.y, (n + 3) / 4 - 1);
#endif
    }
}

// The depth from which a step of an operand with so many depths is loaded: an earlier one than the step's
// first where the step would reach past the end. So no load depends on a condition, for which it would
// have to be waited for.
int start_depth(int step, int depths) {
    return min(step * BK, max(depths - BK, 0));
}

void load_step(int step) {
    int a_start = start_depth(step, A_DEPTHS), b_start = start_depth(step, B_DEPTHS);
    for (int i = 0; i < A_LOADS; ++i) {
#if X_IN_C
        a_next[i] = x_at(a_offset[i] + a_start * A_STRIDE);
#else
        a_next[i] = x_at(a_offset[i] + (a_start >> 2));
#endif
    }
    for (int i = 0; i < B_LOADS; ++i) {
#if QUANTIZED
        words_next[i] = four_words(b_offset[i] + (b_start >> 2));
#elif WEIGHT_IN_R4
        b_next[i] = weight_at(b_offset[i] + (b_start >> 2));
#else
        b_next[i] = weight_at(b_offset[i] + b_start * B_STRIDE);
#endif
    }
#if HAS_PROLOGUE
    loaded_depth = a_start;
#endif
#if QUANTIZED
    b_loaded_depth = b_start;
#endif
}

// Stores the loaded operands to shared memory: x after the normalisation or the prologue, and packed
// weights as numbers. Doing this right after the loads would wait for them too early.
void store_step(int buffer_index) {
#if CENTRED
    for (int i = 0; i < A_LOADS; ++i) {
        vec2 norm = row_norms[min(a_position(i * INVOCATIONS + lane).y, BM - 1)];
        a_next[i] = (a_next[i] - norm.x) * norm.y;
    }
#endif
#if HAS_PROLOGUE
    for (int i = 0; i < A_LOADS; ++i) {
        ivec2 position = a_position(i * INVOCATIONS + lane);
        int depth = min(loaded_depth + position.x, k - 1);
        int a_row = batch * m + min(tile_row + position.y, m - 1);
        a_next[i] = prologue(a_next[i], depth / 4, a_row / image_rows);
    }
#endif
#if QUANTIZED
    for (int i = 0; i < B_LOADS; ++i)
        b_next[i] = unpacked(words_next[i], b_offset[i] + (b_loaded_depth >> 2));
#endif
    store_tiles(buffer_index);
}

// Adds up the products along k: of whole steps, and then of the remaining depths, which the slices share.
// `multiply_steps` has stored these as the last depths of its next step; only they are multiplied, since a
// row's padding may hold anything.
void multiply_all(const int gm, const int gn) {
    int whole_steps = k / BK, first = whole_steps * BK, buffer_index = whole_steps % 2;
    multiply_steps(whole_steps, gm, gn);
    int a_tail = buffer_index * BK + first - start_depth(whole_steps, A_DEPTHS);
    int b_tail = buffer_index * BK + first - start_depth(whole_steps, B_DEPTHS);
    for (int depth = slice; depth < k - first; depth += SLICES) {
        vec4 a[GM], b[GN];
        load_registers(a_tail + depth, b_tail + depth, gm, gn, a, b);
        multiply_add(gm, gn, a, b);
    }
}

#if FINISH_SHARED
int columns, out_offset;  // of the result in vec4: columns, and offset of the first row

void finish_quad(int row_in_tile, int quad_in_tile, vec4 sums) {
    int result_row = tile_row + row_in_tile, quad = tile_column + quad_in_tile;
    if (result_row < m && quad < columns) finish(sums, quad, out_offset + result_row * (out_row / 4) + quad);
}
#endif

void main() {
    locate_tile();
#if BATCHED
    batch = int(WORKGROUP_ID.z);
#endif
    locate_operands();
#if CENTRED
    find_row_norms(lane, tile_row, x_first / 4);
#endif

    // Groups of rows or columns that lie outside of the result are not multiplied.
#if FINISH_SHARED
    columns = (n + 3) / 4;
#else
    int columns = (n + 3) / 4;  // a global has NVIDIA's compiler take other registers: 1.4% at 4096
#endif
    if (GM > 1 && m - tile_row <= 4 * WG_Y)
        multiply_all(1, GN);
    else if (GN > 1 && columns - tile_column <= WG_X)
        multiply_all(GM, 1);
    else
        multiply_all(GM, GN);
    add_slices();
#if FINISH_SHARED
    out_offset = batch * m * (out_row / 4) + out_first / 4;
    finish_shared_sums();
#else
    if (slice > 0) return;  // never: but without it NVIDIA's compiler takes other registers

    int first = batch * m * (out_row / 4) + out_first / 4;
    for (int g = 0; g < GM; ++g) {
        for (int i = 0; i < 4; ++i) {
            int result_row = tile_row + (g * WG_Y + row) * 4 + i;
            for (int j = 0; j < GN; ++j) {
                int quad = tile_column + j * WG_X + column;
                if (result_row < m && quad < columns)
                    finish(sum[(g * 4 + i) * GN + j], quad, first + result_row * (out_row / 4) + quad);
            }
        }
    }
#endif
}
