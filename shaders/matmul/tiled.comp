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
#define WG_X 16
#endif
#ifndef WG_Y
#define WG_Y 16
#endif
#ifndef TM
#define TM 8
#endif
#ifndef TN
#define TN 8
#endif
#ifndef BK
#define BK 8
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_C
#define HAS_C 0
#endif
#include "common/activation.glsl"
#define INVOCATIONS (WG_X * WG_Y)
#define BM (WG_Y * TM)
#define BN (WG_X * TN)
#define GM (TM / 4)
#define GN (TN / 4)
#define A_LOADS ((BM * BK / 4 + INVOCATIONS - 1) / INVOCATIONS)
#define B_LOADS ((BK * BN / 4 + INVOCATIONS - 1) / INVOCATIONS)
#define STRIP 8
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#if HAS_BIAS
layout(std430, binding = 3) buffer Bias { vec4 bias[]; };
#elif HAS_C
layout(std430, binding = 3) buffer C { vec4 c[]; };
#endif
uniform int m, n, k;
uniform int x_row, out_row;  // floats, multiples of 4
uniform float alpha, beta;

shared float a_tile[2 * BK * BM];
shared vec4 b_tile[2 * BK * BN / 4];

int lane, tile_row, tile_column;  // in vec4 for columns

// The tile of this workgroup.
void place() {
    int wide = int(gl_NumWorkGroups.x), high = int(gl_NumWorkGroups.y);
    int linear = int(gl_WorkGroupID.y) * wide + int(gl_WorkGroupID.x);
    int strip = linear / (STRIP * wide);
    int rest = linear - strip * STRIP * wide;
    int rows = min(STRIP, high - strip * STRIP);
    tile_row = (strip * STRIP + rest % rows) * BM;
    tile_column = rest / rows * (BN / 4);
}

void fetch(int start, bool whole, out vec4 a[A_LOADS], out vec4 b[B_LOADS]) {
    for (int i = 0; i < A_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        int row = min(tile_row + item / (BK / 4), m - 1);
        int depth = start + item % (BK / 4) * 4;
        a[i] = vec4(0.0);
        if (whole) {
            a[i] = x[(row * x_row + depth) / 4];
        } else if (depth < k) {  // the row's padding may hold anything
            vec4 v = x[(row * x_row + depth) / 4];
            int rest = k - depth;
            a[i] = vec4(v.x, rest > 1 ? v.y : 0.0, rest > 2 ? v.z : 0.0, rest > 3 ? v.w : 0.0);
        }
    }
    int columns = out_row / 4;
    for (int i = 0; i < B_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        int depth = start + item / (BN / 4);
        int column = min(tile_column + item % (BN / 4), columns - 1);
        b[i] = whole || depth < k ? weight[depth * columns + column] : vec4(0.0);
    }
}

void store(int turn, vec4 a[A_LOADS], vec4 b[B_LOADS]) {
    for (int i = 0; i < A_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        int row = item / (BK / 4);
        int depth = turn * BK + item % (BK / 4) * 4;
        if (BM * BK / 4 % INVOCATIONS != 0 && row >= BM) break;
        for (int j = 0; j < 4; ++j) a_tile[(depth + j) * BM + row] = a[i][j];
    }
    for (int i = 0; i < B_LOADS; ++i) {
        int item = i * INVOCATIONS + lane;
        if (BK * BN / 4 % INVOCATIONS != 0 && item >= BK * BN / 4) break;
        b_tile[turn * (BK * BN / 4) + item] = b[i];
    }
}

void main() {
    lane = int(gl_LocalInvocationIndex);
    place();
    // This invocation's place among the tile's WG_Y x WG_X: 4 x 8 patches, one after the other.
    int patch_of_32 = lane / 32;
    int column = patch_of_32 % (WG_X / 8) * 8 + lane % 8;
    int row = patch_of_32 / (WG_X / 8) * 4 + lane / 8 % 4;

    vec4 sum[TM * GN];
    for (int i = 0; i < TM * GN; ++i) sum[i] = vec4(0.0);
    vec4 a_next[A_LOADS];
    vec4 b_next[B_LOADS];
    fetch(0, false, a_next, b_next);
    store(0, a_next, b_next);
    memoryBarrierShared();
    barrier();

    int steps = (k + BK - 1) / BK;
    for (int step = 0; step < steps; ++step) {
        int turn = step & 1;
        int next = (step + 1) * BK;
        if (next + BK <= k) fetch(next, true, a_next, b_next);
        else if (next < k) fetch(next, false, a_next, b_next);
        for (int depth = 0; depth < BK; ++depth) {
            vec4 a[GM];
            vec4 b[GN];
            for (int g = 0; g < GM; ++g)
            {
                int at = (turn * BK + depth) * BM + (g * WG_Y + row) * 4;
                a[g] = vec4(a_tile[at], a_tile[at + 1], a_tile[at + 2], a_tile[at + 3]);
            }
            for (int g = 0; g < GN; ++g)
                b[g] = b_tile[(turn * BK + depth) * (BN / 4) + g * WG_X + column];
            for (int g = 0; g < GM; ++g)
                for (int i = 0; i < 4; ++i)
                    for (int j = 0; j < GN; ++j) sum[(g * 4 + i) * GN + j] += a[g][i] * b[j];
        }
        if (step + 1 < steps) store(1 - turn, a_next, b_next);
        memoryBarrierShared();
        barrier();
    }

    int columns = out_row / 4;
    for (int g = 0; g < GM; ++g) {
        for (int i = 0; i < 4; ++i) {
            int at = tile_row + (g * WG_Y + row) * 4 + i;
            for (int j = 0; j < GN; ++j) {
                int quad = tile_column + j * WG_X + column;
                if (at >= m || quad >= columns) continue;
                int target = at * columns + quad;
                vec4 value = alpha * sum[(g * 4 + i) * GN + j];
#if HAS_BIAS
                value += bias[quad];
#elif HAS_C
                value += beta * c[target];
#endif
                result[target] = activate(value);
            }
        }
    }
}
