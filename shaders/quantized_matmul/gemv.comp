#version 310 es
// x W^T for few rows of x and packed weights. LANES invocations walk along the units of a row of
// weights side by side, ROW_GROUPS of them at ROWS rows each; the workgroup's share of x, of COLUMNS rows,
// is in shared memory, where neighbours read neighbouring vec4s. Four sums of products are added up side
// by side, and multiplied by the unit's scale only once; the minimum is by the sum of its x. With
// HAS_NORM the root of the mean of squares, of which the invocations add up what they load, divides the
// sums at the end. LANES invocations that are a subgroup add up their sums at once.
#ifndef LANES
#define LANES 32
#endif
#ifndef ROW_GROUPS
#define ROW_GROUPS 2
#endif
#ifndef ROWS
#define ROWS 2
#endif
#ifndef COLUMNS
#define COLUMNS 1
#endif
#ifndef HAS_NORM
#define HAS_NORM 0
#endif
#ifndef SUBGROUP_SIZE
#define SUBGROUP_SIZE 0
#endif
#include "common/launch.glsl"
#include "common/wait.glsl"
#include "common/first_of.glsl"
#include "common/x.glsl"
layout(local_size_x = LANES, local_size_y = ROW_GROUPS) in;
layout(std430, binding = 1) buffer Weight { uvec4 weight[]; };
#define PACKED(i) weight[i]
#include "common/quantized.glsl"
#include "matmul/scalar.glsl"
#include "quantized_matmul/gate.glsl"
#if HAS_NORM
layout(std430, binding = 3) buffer Norm { vec4 norm[]; };
uniform float eps;
float squares = 0.0;  // of what this invocation loaded
#endif
uniform int m, n, k, units;
uniform int x_row, out_row;  // floats, multiples of 4
#define SUMS (HALVES * ROWS)
#define STRIDE (LANES + 1)  // vec4s from a part of the units to the next: another bank for each
#define SHARE (8 * LANES)   // vec4s of a row of x that are shared
#define PARTS (FORMAT == Q6_K || FORMAT == INTEGER && BLOCK < 32 ? 2 : 1)  // with scales of their own
#if FORMAT == F32
#define FOURS min(8 * units, 8)  // 8, which Mali's compiler must not know: it loads all first, and spills
#else
#define FOURS 8
#endif
shared vec4 part_of_x[COLUMNS * 8 * STRIDE];
shared float sums[ROW_GROUPS * SUMS * COLUMNS * LANES];

// Puts the numbers of LANES units of x from `first` on into shared memory; what is behind k as zeros.
void share(int first, int top) {
    for (int i = int(gl_LocalInvocationIndex); i < COLUMNS * SHARE; i += LANES * ROW_GROUPS) {
        int column = i / SHARE, place = i % SHARE;
        int quad = first * 8 + place, left = k - 4 * quad;
        vec4 a = vec4(0.0);
        if (left > 0 && top + column < m)
            a = first_of(x_at((top + column) * (x_row / 4) + quad), left);
#if HAS_NORM
        squares += dot(a, a);
        if (left > 0) a *= first_of(norm[quad], left);
#endif
        part_of_x[(column * 8 + place % 8) * STRIDE + place / 8] = a;
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x), group = int(gl_LocalInvocationID.y);
    int row = (int(WORKGROUP_ID.y) * ROW_GROUPS + group) * ROWS;
    int top = int(WORKGROUP_ID.z) * COLUMNS;
    float sum[SUMS * COLUMNS];
    for (int i = 0; i < SUMS * COLUMNS; ++i) sum[i] = 0.0;
    for (int first = 0; first < units; first += LANES) {
        if (first > 0) wait();
        share(first, top);
        wait();
        if (first + lane >= units) continue;
#if HAS_MINIMUM
        float of_x[COLUMNS];
        for (int column = 0; column < COLUMNS; ++column) {
            vec4 total = vec4(0.0);
            for (int part = 0; part < 8; ++part)
                total += part_of_x[(column * 8 + part) * STRIDE + lane];
            of_x[column] = dot(total, vec4(1.0));
        }
#endif
        for (int i = 0; i < SUMS; ++i) {
            int of_row = min(row + i / HALVES, n - 1) + i % HALVES * n;
            int unit = of_row * units + first + lane;
            Scales scales = scales_of(scale_words(unit), unit);
            vec4 products[PARTS * COLUMNS];
            for (int j = 0; j < PARTS * COLUMNS; ++j) products[j] = vec4(0.0);
            for (int part = 0; part < FOURS; ++part) {
                vec4 values = values_of(quant_words(unit, part), part, scales.zeros);
                for (int column = 0; column < COLUMNS; ++column)
                    products[PARTS * column + part * PARTS / 8] +=
                        values * part_of_x[(column * 8 + part) * STRIDE + lane];
            }
            for (int column = 0; column < COLUMNS; ++column) {
                float total = 0.0;
                for (int j = 0; j < PARTS; ++j)
                    total += scales.scale[j] * dot(products[PARTS * column + j], vec4(1.0));
#if HAS_MINIMUM
                total += scales.minimum * of_x[column];
#endif
                sum[i * COLUMNS + column] += total;
            }
        }
    }
    int first = group * SUMS * COLUMNS * LANES;
#if HAS_NORM && SUBGROUP_SIZE == LANES
    squares = subgroupAdd(squares);
    if (lane == 0) sums[group] = squares;
    wait();
    squares = 0.0;
    for (int i = 0; i < ROW_GROUPS; ++i) squares += sums[i];
    wait();
#elif HAS_NORM
    int place = int(gl_LocalInvocationIndex);
    sums[place] = squares;
    for (int width = LANES * ROW_GROUPS / 2; width > 0; width /= 2) {
        wait();
        if (place < width) sums[place] += sums[place + width];
    }
    wait();
    squares = sums[0];
    wait();
#endif
#if HAS_NORM
    float divisor = inversesqrt(squares / float(k) + eps);
#else
    const float divisor = 1.0;
#endif
#if SUBGROUP_SIZE == LANES
    for (int i = 0; i < SUMS * COLUMNS; ++i) {
        float total = subgroupAdd(sum[i]);
        if (lane == 0) sums[first + i * LANES] = total;
    }
#else
    for (int i = 0; i < SUMS * COLUMNS; ++i) sums[first + i * LANES + lane] = sum[i];
    for (int width = LANES / 2; width > 0; width /= 2) {
        wait();
        if (lane < width)
            for (int i = 0; i < SUMS * COLUMNS; ++i)
                sums[first + i * LANES + lane] += sums[first + i * LANES + lane + width];
    }
#endif
    wait();
    for (int i = lane; i < ROWS * COLUMNS; i += LANES) {
        int column = row + i / COLUMNS, of_row = top + i % COLUMNS;
        int at = first + (i / COLUMNS * HALVES * COLUMNS + i % COLUMNS) * LANES;
        float found = sums[at] * divisor;
#if GATE
        found = gated(found) * (sums[at + COLUMNS * LANES] * divisor);
#endif
        if (column < n && of_row < m) finish(found, column, of_row * out_row + column);
    }
}
