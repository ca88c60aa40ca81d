#version 310 es
// C = A B through shared memory: a workgroup computes a tile of
// WG_Y TM rows by WG_X TN columns and walks along k in steps of BK, while the next step's operands
// are on their way into registers.
//
// SLICES of a workgroup share each step's depths: few large tiles then still make for many
// invocations. AHEAD says when the next steps are loaded and stored: see `walk` of common/tile.glsl.
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
int whole = 0;    // steps of k that are not ragged
int fetched = 0;  // where along k the step begins that was fetched
int a_from[A_LOADS], b_from[B_LOADS];  // where the loads of the first step lie, in vec4
#if X_IN_C
#define A_STRIDE (x_rows / 4)  // from a depth to the next
#endif
#if !WEIGHT_IN_R4
#define B_STRIDE (weight_rows / 4)
#endif

// Finds where the loads of the first step lie.
void aim() {
    for (int i = 0; i < A_LOADS; ++i) {
        ivec2 from = a_item(i * INVOCATIONS + lane);
#if X_IN_C
        a_from[i] = from.x * A_STRIDE + min(tile_row / 4 + from.y, (m - 1) / 4);
#else
        int of_row = batch * m + min(tile_row + from.y, m - 1);
        a_from[i] = x_first / 4 + of_row * (x_row / 4) + from.x / 4;
#endif
    }
    for (int i = 0; i < B_LOADS; ++i) {
        ivec2 from = b_item(i * INVOCATIONS + lane);
#if WEIGHT_IN_R4
        int stride = (BATCHED == 1 ? k : weight_row) / 4;
        b_from[i] = batch * (weight_row / 4) + from.x / 4;
        b_from[i] += min(tile_column * 4 + from.y, n - 1) * stride;
#else
        b_from[i] = batch * (weight_matrix / 4) + from.x * B_STRIDE;
        b_from[i] += min(tile_column + from.y, (n + 3) / 4 - 1);
#endif
    }
}

// Loads the operands of the step at `start`. Only where it is ragged, on the last step of a k that is
// no multiple of BK, is anything tested: a test would make the loads be waited for.
void load(int start, const bool ragged) {
    fetched = start;
    for (int i = 0; i < A_LOADS; ++i) {
        int left = k - start - a_item(i * INVOCATIONS + lane).x;
#if X_IN_C
        a_next[i] = !ragged || left > 0 ? x_at(a_from[i] + start * A_STRIDE) : vec4(0.0);
#else
        int at = a_from[i] + (start >> 2);
        if (!ragged)
            a_next[i] = x_at(at);
        else  // the row's padding may hold anything
            a_next[i] = left > 0 ? first_of(x_at(at), left) : vec4(0.0);
#endif
    }
    for (int i = 0; i < B_LOADS; ++i) {
        int left = k - start - b_item(i * INVOCATIONS + lane).x;
#if WEIGHT_IN_R4
        int at = b_from[i] + (start >> 2);
        if (!ragged)
            b_next[i] = weight_at(at);
        else
            b_next[i] = left > 0 ? first_of(weight_at(at), left) : vec4(0.0);
#else
        b_next[i] = !ragged || left > 0 ? weight_at(b_from[i] + start * B_STRIDE) : vec4(0.0);
#endif
    }
}

void fetch(int of_step) {
    load(min(of_step, whole - 1) * BK, false);
}

// Puts what was fetched into shared memory: of x, what the prologue makes of it. It is done here, and
// not as the numbers are loaded, so that nobody waits for them before.
void put(int turn) {
#if HAS_PROLOGUE
    for (int i = 0; i < A_LOADS; ++i) {
        ivec2 from = a_item(i * INVOCATIONS + lane);
        int depth = fetched + from.x, at = batch * m + min(tile_row + from.y, m - 1);
        a_next[i] = prologue(a_next[i], min(depth, k - 1) / 4, at / image_rows);
        if (fetched + BK > k) a_next[i] = first_of(a_next[i], k - depth);
    }
#endif
    store(turn);
}

// The sums along k: whole steps, and what is left.
void walk_k(const int gm, const int gn) {
    whole = k / BK;
    if (whole > 0) walk(whole, gm, gn);
    if (whole * BK < k) {
        int turn = 1 - whole % 2;  // the other may still be read
        load(whole * BK, true);
        put(turn);
        wait();
        multiply(turn, 0, DEPTHS, gm, gn);
    }
}

void main() {
    place();
#if BATCHED
    batch = int(WORKGROUP_ID.z);
#endif
    aim();

    // Tiles at the edges may have few rows or columns: the rest is not worth multiplying.
    int columns = (n + 3) / 4;
    if (GM > 1 && m - tile_row <= 4 * WG_Y)
        walk_k(1, GN);
    else if (GN > 1 && columns - tile_column <= WG_X)
        walk_k(GM, 1);
    else
        walk_k(GM, GN);
    meet();
    if (slice > 0) return;

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
}
