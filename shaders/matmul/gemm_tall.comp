#version 310 es
// C = A B of many rows and short sums: a workgroup loads BM whole rows of x to shared memory, once and
// coalesced, and computes all of their columns, TM rows by four columns an invocation at a time. Weights
// are column-major and stay in the cache; neighbours read and write whole cache lines.
#ifndef WG_X
#define WG_X 128
#endif
#ifndef BM
#define BM 32
#endif
#ifndef TM
#define TM 4
#endif
#ifndef LONGEST
#define LONGEST 32
#endif
#ifndef LOADS
#define LOADS 2
#endif
#ifndef BATCHED
#define BATCHED 0
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "matmul/operands.glsl"
#include "matmul/vector.glsl"
layout(local_size_x = WG_X) in;
uniform int m, n, k;
uniform int x_first, x_row, out_row, weight_rows;  // floats, multiples of 4
uniform int image_rows;
#define PROLOGUE_CHANNELS k
#include <prologue>

#define GROUPS (BM / TM)
#define STAGED (LONGEST / 4)  // vec4 of a row that are in shared memory
#define ROW (STAGED + 1)      // odd: neighbouring rows begin in other banks
shared vec4 rows[BM * ROW];

// `loaded` is a vec4 of row `row` of x, and `prepared` what the prologue makes of it. Rows past the last
// one repeat it.
vec4 loaded(int row, int step) {
    return x_at(x_first / 4 + min(row, m - 1) * (x_row / 4) + step);
}

vec4 prepared(vec4 value, int row, int step) {
    return prologue(value, step, min(row, m - 1) / image_rows);
}

// Loads BM rows from `first` on to shared memory, of long rows the first STAGED vec4. LOADS loads are in
// flight at a time.
void stage(int first, int lane) {
    int quads = min((k + 3) / 4, STAGED), count = BM * quads;
    for (int from = lane; from < count; from += LOADS * WG_X) {
        vec4 next[LOADS];
        for (int i = 0; i < LOADS; ++i) {
            int item = min(from + i * WG_X, count - 1), row = item / quads;
            next[i] = loaded(first + row, item - row * quads);
        }
        for (int i = 0; i < LOADS; ++i) {
            int item = min(from + i * WG_X, count - 1), row = item / quads;
            int step = item - row * quads;
            rows[row * ROW + step] = prepared(next[i], first + row, step);
        }
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x), first = int(WORKGROUP_ID.y) * BM;
    stage(first, lane);
    workgroup_barrier();

    int columns = (n + 3) / 4, stride = weight_rows / 4;
    for (int item = lane; item < columns * GROUPS; item += WG_X) {
        int group = item / columns, quad = item - group * columns;  // rows group, group + GROUPS, ...
        vec4 sum[TM];
        for (int i = 0; i < TM; ++i) sum[i] = vec4(0.0);
        for (int step = 0; step < min(k / 4, STAGED); ++step) {
            vec4 b[4];
            for (int l = 0; l < 4; ++l) b[l] = weight_at(quad + (4 * step + l) * stride);
            for (int i = 0; i < TM; ++i) {
                vec4 a = rows[(group + i * GROUPS) * ROW + step];
                sum[i] += a.x * b[0] + a.y * b[1] + a.z * b[2] + a.w * b[3];
            }
        }
        // One depth at a time: the last ones of a row, whose padding may hold anything, and those that
        // are not in shared memory.
        for (int depth = min(k & ~3, LONGEST); depth < k; ++depth) {
            vec4 b = weight_at(quad + depth * stride);
            for (int i = 0; i < TM; ++i) {
                int row = group + i * GROUPS, step = depth / 4;
                vec4 a = step < STAGED ? rows[row * ROW + step]
                                       : prepared(loaded(first + row, step), first + row, step);
                sum[i] += a[depth & 3] * b;
            }
        }
        for (int i = 0; i < TM; ++i) {
            int row = first + group + i * GROUPS;
            if (row < m) finish(sum[i], quad, row * (out_row / 4) + out_first / 4 + quad);
        }
    }
}
