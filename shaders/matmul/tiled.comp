#version 310 es
// C = act(alpha A B + beta C + bias) through shared memory: a workgroup computes a tile of
// WG_Y TM rows by WG_X TN columns and walks along k in steps of BK, loading the next step's operands
// into registers while it multiplies this one's.
//
// What makes it fast: runs of 32 invocations cover 4 x 8 patches of the tile, so that they share
// words; an invocation's rows and columns are groups of four spread over the tile; A is kept
// k-major; and workgroups are walked in strips of 8 tile rows, so that neighbours in time share
// operands in the cache.
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
#ifndef BATCHED
#define BATCHED 0
#endif
#include "matmul/operands.glsl"
#include "matmul/vector.glsl"
#define INVOCATIONS (WG_X * WG_Y)
#define BM (WG_Y * TM)
#define BN (WG_X * TN)
#define GM (TM / 4)
#define GN (TN / 4)
#define A_LOADS ((BM * BK / 4 + INVOCATIONS - 1) / INVOCATIONS)
#define B_LOADS ((BK * BN / 4 + INVOCATIONS - 1) / INVOCATIONS)
#define STRIP 8
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
uniform int m, n, k;
uniform int x_row, weight_rows, weight_matrix, out_row;  // floats, multiples of 4

shared float a_tile[2 * BK * BM];  // k-major
shared vec4 b_tile[2 * BK * BN / 4];

int lane, tile_row, tile_column;  // columns in vec4
int row, column;                  // this invocation's place in the tile
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
    int patch_of_32 = lane / 32;
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
        int depth = start + item / (BN / 4);
        int at = first + depth * (weight_rows / 4) + min(tile_column + item % (BN / 4), columns - 1);
        b_next[i] = !ragged || depth < k ? weight_at(at) : vec4(0.0);
    }
}

void store(int turn) {
    for (int i = 0; i < A_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        int at = (turn * BK + item % (BK / 4) * 4) * BM + item / (BK / 4);
        if (BM * BK / 4 % INVOCATIONS != 0 && item >= BM * BK / 4) break;
        for (int j = 0; j < 4; ++j) a_tile[at + j * BM] = a_next[i][j];
    }
    for (int i = 0; i < B_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        if (BK * BN / 4 % INVOCATIONS != 0 && item >= BK * BN / 4) break;
        b_tile[turn * (BK * BN / 4) + item] = b_next[i];
    }
}

void multiply(int turn) {
    for (int depth = 0; depth < BK; ++depth) {
        vec4 a[GM];
        vec4 b[GN];
        for (int g = 0; g < GM; ++g) {
            int at = (turn * BK + depth) * BM + (g * WG_Y + row) * 4;
            a[g] = vec4(a_tile[at], a_tile[at + 1], a_tile[at + 2], a_tile[at + 3]);
        }
        for (int g = 0; g < GN; ++g)
            b[g] = b_tile[(turn * BK + depth) * (BN / 4) + g * WG_X + column];
        for (int g = 0; g < GM; ++g)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < GN; ++j) sum[(g * 4 + i) * GN + j] += a[g][i] * b[j];
    }
}

void wait() {
    memoryBarrierShared();
    barrier();
}

void main() {
    place();
    for (int i = 0; i < TM * GN; ++i) sum[i] = vec4(0.0);

    int whole = k / BK;
    int turn = 0;
    if (whole > 0) {
        fetch(0, false);
        store(0);
        wait();
        for (int step = 0; step < whole; ++step) {
            fetch(min(step + 1, whole - 1) * BK, false);
            multiply(turn);
            turn = 1 - turn;
            store(turn);
            wait();
        }
    }
    if (whole * BK < k) {
        fetch(whole * BK, true);
        store(turn);
        wait();
        multiply(turn);
    }

    int columns = (n + 3) / 4;
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
