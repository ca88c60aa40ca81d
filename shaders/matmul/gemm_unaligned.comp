#version 310 es
// C = A B^T for batches of small matrices some of whose rows are not padded to whole vec4: TM results of a
// column an invocation, one number at a time, so that no operand has to be reordered. A workgroup computes
// several matrices (matmul/flat.glsl).
#ifndef WG_X
#define WG_X 64
#endif
#ifndef TM
#define TM 2
#endif
#include "common/launch.glsl"
#include "common/half.glsl"
#include "common/bytes.glsl"
#include "matmul/flat.glsl"
#include "matmul/scalar.glsl"
#ifndef X_HALF
#define X_HALF 0
#endif
#ifndef WEIGHT_HALF
#define WEIGHT_HALF 0
#endif
#ifndef WEIGHT_BYTES
#define WEIGHT_BYTES 0
#endif
layout(local_size_x = WG_X) in;
uniform int m, n, k;
uniform int x_row, out_row;
#if X_HALF
layout(std430, binding = 0) buffer X { uint x[]; };
#define X_ONE(i) one_half(x[(i) >> 1], i)
#else
layout(std430, binding = 0) buffer X { float x[]; };
#define X_ONE(i) x[i]
#endif
#if WEIGHT_HALF
layout(std430, binding = 1) buffer Weight { uint weight[]; };
#define WEIGHT_ONE(i) one_half(weight[(i) >> 1], i)
#elif WEIGHT_BYTES
layout(std430, binding = 1) buffer Weight { int weight[]; };
#define WEIGHT_ONE(i) float(one_signed(weight[(i) >> 2], i))
#else
layout(std430, binding = 1) buffer Weight { float weight[]; };
#define WEIGHT_ONE(i) weight[i]
#endif

void main() {
    ivec3 place = flat_place(int(INVOCATION_ID.x), n, m, 1, TM);
    int matrix = place.x, row = place.y, column = place.z;
    if (matrix >= batch) return;

    int first = (matrix * m + row) * x_row;
    int weights = (matrix * n + column) * k;
    float sum[TM];
    for (int i = 0; i < TM; ++i) sum[i] = 0.0;
    for (int step = 0; step < k; ++step) {
        float b = WEIGHT_ONE(weights + step);
        for (int i = 0; i < TM; ++i) {
            int at = first + min(i, m - 1 - row) * x_row + step;
            sum[i] += X_ONE(at) * b;
        }
    }
    for (int i = 0; i < TM; ++i)
        if (row + i < m) finish(sum[i], column, (matrix * m + row + i) * out_row + column);
}
