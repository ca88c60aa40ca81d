#version 310 es
// C = act(alpha A B + beta C + bias) through shared memory: a workgroup computes a tile of
// WG_Y TM rows by WG_X TN columns and walks along k in steps of BK, while the next step's operands
// are on their way into registers.
//
// What makes it fast: runs of 32 invocations cover 4 x 8 patches of the tile, so that they share
// words; an invocation's rows and columns are groups of four spread over the tile; A is kept
// k-major; and workgroups are walked in strips of 8 tile rows, so that neighbours in time share
// operands in the cache. SLICES of a workgroup share each step's depths: few large tiles then still
// make for many invocations. AHEAD stores a step before multiplying the one before it.
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
#include "matmul/operands.glsl"
#include "matmul/vector.glsl"
#define LANES (WG_X * WG_Y)
#define INVOCATIONS (LANES * SLICES)
#define BM (WG_Y * TM)
#define BN (WG_X * TN)
#define AM (BM + 4)  // other banks for the next depth
#define GM (TM / 4)
#define GN (TN / 4)
#define A_LOADS ((BM * BK / 4 + INVOCATIONS - 1) / INVOCATIONS)
#define B_LOADS ((BK * BN / 4 + INVOCATIONS - 1) / INVOCATIONS)
#define STRIP 8
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = SLICES) in;
uniform int m, n, k;
uniform int x_row, weight_rows, weight_matrix, out_row;  // floats, multiples of 4

shared float a_tile[2 * BK * AM];  // k-major
shared vec4 b_tile[2 * BK * BN / 4];

int lane, slice, tile_row, tile_column;  // columns in vec4
int row, column;                         // this invocation's place in the tile
int batch = 0;
vec4 a_next[A_LOADS], b_next[B_LOADS];
vec4 sum[TM * GN];

// The tile of this workgroup, and this invocation's place in it.
void place() {
    int wide = int(gl_NumWorkGroups.x), high = int(gl_NumWorkGroups.y);
    int linear = int(gl_WorkGroupID.y) * wide + int(gl_WorkGroupID.x);
    int strip = linear / (STRIP * wide);
    int rest = linear - strip * STRIP * wide;
    int rows = min(STRIP, high - strip * STRIP);
    tile_row = (strip * STRIP + rest % rows) * BM;
    tile_column = rest / rows * (BN / 4);
#if BATCHED
    batch = int(gl_WorkGroupID.z);
#endif
    lane = int(gl_LocalInvocationIndex);
    slice = lane / LANES;
    int patch_of_32 = lane % LANES / 32;
    column = patch_of_32 % (WG_X / 8) * 8 + lane % 8;
    row = patch_of_32 / (WG_X / 8) * 4 + lane / 8 % 4;
}

// Loads the operands of the step at `start`. Only where it is ragged, on the last step of a k
// that is no multiple of BK, is anything tested: a test would make the loads be waited for.
void fetch(int start, bool ragged) {
    int first = batch * m * (x_row / 4);
    for (int i = 0; i < A_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        int depth = start + item % (BK / 4) * 4;
        int at = first + min(tile_row + item / (BK / 4), m - 1) * (x_row / 4) + depth / 4;
        if (!ragged)
            a_next[i] = x_at(at);
        else  // the row's padding may hold anything
            a_next[i] = depth < k ? first_of(x_at(at), k - depth) : vec4(0.0);
    }
    first = batch * (weight_matrix / 4);
    int columns = (n + 3) / 4;
    for (int i = 0; i < B_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        int depth = start + min(item / (BN / 4), BK - 1);
        int at = first + depth * (weight_rows / 4) + min(tile_column + item % (BN / 4), columns - 1);
        b_next[i] = !ragged || depth < k ? weight_at(at) : vec4(0.0);
    }
}

void store(int turn) {
    for (int i = 0; i < A_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        int at = (turn * BK + item % (BK / 4) * 4) * AM + item / (BK / 4);
        if (BM * BK / 4 % INVOCATIONS != 0 && item >= BM * BK / 4) break;
        for (int j = 0; j < 4; ++j) a_tile[at + j * AM] = a_next[i][j];
    }
    for (int i = 0; i < B_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        if (BK * BN / 4 % INVOCATIONS != 0 && item >= BK * BN / 4) break;
        b_tile[turn * (BK * BN / 4) + item] = b_next[i];
    }
}

// Multiplies this slice's depths of the step; gm and gn: groups of rows and of columns that matter.
void multiply(int turn, const int gm, const int gn) {
    for (int step = 0; step < BK / SLICES; ++step) {
        int depth = turn * BK + slice * (BK / SLICES) + step;
        vec4 a[GM];
        vec4 b[GN];
        for (int g = 0; g < gm; ++g) {
            int at = depth * AM + (g * WG_Y + row) * 4;
            a[g] = vec4(a_tile[at], a_tile[at + 1], a_tile[at + 2], a_tile[at + 3]);
        }
        for (int g = 0; g < gn; ++g) b[g] = b_tile[depth * (BN / 4) + g * WG_X + column];
        for (int g = 0; g < gm; ++g)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < gn; ++j) sum[(g * 4 + i) * GN + j] += a[g][i] * b[j];
    }
}

void wait() {
    memoryBarrierShared();
    barrier();
}

// The sums along k.
void walk(const int gm, const int gn) {
    int whole = k / BK;
    int turn = 0;
    if (whole > 0) {
        fetch(0, false);
        store(0);
#if AHEAD
        fetch(min(1, whole - 1) * BK, false);
#endif
        wait();
        for (int step = 0; step < whole; ++step) {
#if AHEAD
            store(1 - turn);
            fetch(min(step + 2, whole - 1) * BK, false);
            multiply(turn, gm, gn);
#else
            fetch(min(step + 1, whole - 1) * BK, false);
            multiply(turn, gm, gn);
            store(1 - turn);
#endif
            turn = 1 - turn;
            wait();
        }
    }
    if (whole * BK < k) {
        fetch(whole * BK, true);
        store(turn);
        wait();
        multiply(turn, gm, gn);
    }
}

#if SLICES > 1
// Adds up the slices' sums in the first slice, SPACE of each invocation at a time: what b_tile
// holds. Written out, since an array indexed by a loop's variable would leave the registers.
#define SPACE (2 * BK * BN / 4 / LANES)
#if SPACE * 16 < TM * GN
#error too few turns to add up the slices
#endif
#define MEET(turn) \
    if (turn * SPACE < TM * GN) { \
        wait(); \
        if (slice == other) \
            for (int i = 0; i < SPACE && turn * SPACE + i < TM * GN; ++i) \
                b_tile[i * LANES + lane % LANES] = sum[turn * SPACE + i]; \
        wait(); \
        if (slice == 0) \
            for (int i = 0; i < SPACE && turn * SPACE + i < TM * GN; ++i) \
                sum[turn * SPACE + i] += b_tile[i * LANES + lane]; \
    }
#endif

void main() {
    place();
    for (int i = 0; i < TM * GN; ++i) sum[i] = vec4(0.0);

    // Tiles at the edges may have few rows or columns: the rest is not worth multiplying.
    int columns = (n + 3) / 4;
    if (GM > 1 && m - tile_row <= 4 * WG_Y)
        walk(1, GN);
    else if (GN > 1 && columns - tile_column <= WG_X)
        walk(GM, 1);
    else
        walk(GM, GN);
#if SLICES > 1
    for (int other = 1; other < SLICES; ++other) {
        MEET(0) MEET(1) MEET(2) MEET(3) MEET(4) MEET(5) MEET(6) MEET(7)
        MEET(8) MEET(9) MEET(10) MEET(11) MEET(12) MEET(13) MEET(14) MEET(15)
    }
    if (slice > 0) return;
#endif

    for (int g = 0; g < GM; ++g) {
        for (int i = 0; i < 4; ++i) {
            int at = tile_row + (g * WG_Y + row) * 4 + i;
            for (int j = 0; j < GN; ++j) {
                int quad = tile_column + j * WG_X + column;
                if (at < m && quad < columns)
                    finish(sum[(g * 4 + i) * GN + j], quad, (batch * m + at) * (out_row / 4) + quad);
            }
        }
    }
}
