#version 310 es
// x W^T for COLUMNS rows of x and packed weights, each unpacked once for all of these rows. LANES invocations
// step together along the units of ROWS rows of weights; a workgroup has ROW_GROUPS such groups. A block of x
// is in shared memory, and each vec4 loaded from there is multiplied by ROWS vec4 of weights, while the next
// block, and with AHEAD the words of the next units, are loaded into registers. Four neighbours belong to four
// groups and read the same numbers of x. UNROLLED writes out the parts of a unit, so that its words stay in
// registers even if a compiler does not unroll loops. With GATE half of the rows are of each half of the
// weight.
#ifndef LANES
#define LANES 8
#endif
#ifndef ROW_GROUPS
#define ROW_GROUPS 16
#endif
#ifndef ROWS
#define ROWS 4
#endif
#ifndef COLUMNS
#define COLUMNS 8
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#ifndef UNROLLED
#define UNROLLED 0
#endif
#ifndef HAS_NORM
#define HAS_NORM 0
#endif
#ifndef GATE
#define GATE 0
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "common/first_of.glsl"
#include "common/x.glsl"
layout(local_size_x = LANES, local_size_y = ROW_GROUPS) in;
#include "common/quantized.glsl"
#include "matmul/scalar.glsl"
#include "quantized_matmul/gate.glsl"
#if HAS_NORM
layout(std430, binding = 3) buffer Norm { vec4 norm[]; };
uniform float eps;
#endif
uniform int m, n, k, units;
uniform int x_row, out_row;  // floats, multiples of 4
#define INVOCATIONS (LANES * ROW_GROUPS)
#define STRIDE (LANES + 1)  // pitch of a part of the units in vec4: the next begins in another bank
#define BLOCK_QUADS (8 * LANES)  // vec4 of a row of x in a block
#define LOADS ((COLUMNS * BLOCK_QUADS + INVOCATIONS - 1) / INVOCATIONS)
#define RESULTS (ROW_GROUPS * ROWS / HALVES)  // of a row of x
#define SUMS (ROWS * COLUMNS)                 // of an invocation
#define PER_ROUND 2                           // vec4 of sums that are added at a time
#define WORDS_AHEAD (AHEAD == 1 && UNIT_QUADS <= 2)
#define FOURS ((SUMS + 3) / 4)
// A block of x; at the end, the results.
shared vec4 part_of_x[COLUMNS * 8 * STRIDE > ROW_GROUPS * FOURS ? COLUMNS * 8 * STRIDE : ROW_GROUPS * FOURS];
shared vec4 parts[PER_ROUND * INVOCATIONS];

int index, lane, group, row, top;
vec4 x_next[LOADS];
#if HAS_NORM
vec4 norm_next[LOADS];
float squares[LOADS];  // sums of the squares of each load
#endif
float sum[SUMS];

// The index of the sum of row `i` of the weights and a row of x; the two halves are adjacent.
int sum_index(int i, int column) {
    return (i / HALVES * COLUMNS + column) * HALVES + i % HALVES;
}

// Loads the block of x of LANES units from `first` on. Indices are clamped, so that no load depends on a
// condition.
void load_block(int first) {
    for (int j = 0; j < LOADS; ++j) {
        int i = j * INVOCATIONS + index;
        int quad = max(min(first * 8 + i % BLOCK_QUADS, (k - 1) / 4), 0);
        x_next[j] = x_at(min(top + min(i / BLOCK_QUADS, COLUMNS - 1), m - 1) * (x_row / 4) + quad);
#if HAS_NORM
        norm_next[j] = norm[quad];
#endif
    }
}

// Stores the loaded block to shared memory, with zeros past k and past the last row.
void store_block(int first) {
    for (int j = 0; j < LOADS; ++j) {
        int i = j * INVOCATIONS + index, column = i / BLOCK_QUADS, place = i % BLOCK_QUADS;
        if (COLUMNS * BLOCK_QUADS % INVOCATIONS != 0 && column >= COLUMNS) break;
        int left = top + column < m ? k - 4 * (first * 8 + place) : 0;
        vec4 a = first_of(x_next[j], left);
#if HAS_NORM
        squares[j] += dot(a, a);
        a *= first_of(norm_next[j], left);
#endif
        part_of_x[(column * 8 + place % 8) * STRIDE + place / 8] = a;
    }
}

// The index of unit `u` of row `i` of this invocation's weights.
int unit_of(int i, int u) {
    return (min(row + i / HALVES, n - 1) + i % HALVES * n) * units + min(u, units - 1);
}

#if UNIT_QUADS <= 2
UnitWords words[ROWS];
#define SCALE_WORDS(i, unit) words[i].scales
#define QUANT_WORDS(i, unit, part) words_of(words[i], part)
#else
#define SCALE_WORDS(i, unit) scale_words(unit)
#define QUANT_WORDS(i, unit, part) quant_words(unit, part)
#endif

Scales scales[ROWS];  // of the units that are multiplied

// Multiplies part `part` of unit `u` of all rows.
void multiply_part(int u, const int part) {
    vec4 b[ROWS];
    for (int i = 0; i < ROWS; ++i) {
        vec4 values = values_of(QUANT_WORDS(i, unit_of(i, u), part), part, scales[i].zeros);
        b[i] = values * scales[i].scale[part >> 2] + scales[i].minimum;
    }
    for (int column = 0; column < COLUMNS; ++column) {
        vec4 a = part_of_x[(column * 8 + part) * STRIDE + lane];
        for (int i = 0; i < ROWS; ++i) {
            int target = sum_index(i, column);
            sum[target] = sum[target] + a.x * b[i].x + a.y * b[i].y + a.z * b[i].z + a.w * b[i].w;
        }
    }
}

void multiply(int u) {
    for (int i = 0; i < ROWS; ++i) scales[i] = scales_of(SCALE_WORDS(i, unit_of(i, u)), unit_of(i, u));
#if UNROLLED
    multiply_part(u, 0);
    multiply_part(u, 1);
    multiply_part(u, 2);
    multiply_part(u, 3);
    multiply_part(u, 4);
    multiply_part(u, 5);
    multiply_part(u, 6);
    multiply_part(u, 7);
#else
    for (int part = 0; part < 8; ++part) multiply_part(u, part);
#endif
}

// Adds PER_ROUND vec4 of sums of all lanes. Rounds are literals, since an array indexed by a loop's variable would
// leave the registers.
#define STORE(round_index, i) \
    if (4 * (PER_ROUND * round_index + i) < SUMS) \
        parts[i * INVOCATIONS + group * LANES + lane] = four_sums(4 * (PER_ROUND * round_index + i));
#define ADD(round_index) \
    if (4 * PER_ROUND * round_index < SUMS) { \
        workgroup_barrier(); \
        STORE(round_index, 0) \
        STORE(round_index, 1) \
        workgroup_barrier(); \
        add_lanes(PER_ROUND * round_index); \
    }

vec4 four_sums(const int i) {
    return vec4(sum[i], sum[min(i + 1, SUMS - 1)], sum[min(i + 2, SUMS - 1)], sum[min(i + 3, SUMS - 1)]);
}

// Adds the vec4 of all lanes that are in shared memory, in the first lanes, and stores the totals in the place
// of x.
void add_lanes(int first) {
    for (int i = lane; i < PER_ROUND; i += LANES) {
        if (4 * (first + i) >= SUMS) break;
        vec4 total = vec4(0.0);
        for (int j = 0; j < LANES; ++j) total += parts[i * INVOCATIONS + group * LANES + j];
        part_of_x[group * FOURS + first + i] = total;
    }
}

#if HAS_NORM
// Computes the factor of the sums of each row of x, and stores it in the place of x, in the row's first vec4.
void find_scales() {
    workgroup_barrier();
    for (int j = 0; j < LOADS; ++j) {
        int i = j * INVOCATIONS + index;
        if (i < COLUMNS * BLOCK_QUADS) part_of_x[i].x = squares[j];
    }
    workgroup_barrier();
    for (int i = index; i < 8 * COLUMNS; i += INVOCATIONS) {
        float total = 0.0;
        for (int j = 0; j < LANES; ++j) total += part_of_x[i * LANES + j].x;
        part_of_x[i * LANES].x = total;
    }
    workgroup_barrier();
    for (int column = index; column < COLUMNS; column += INVOCATIONS) {
        float total = 0.0;
        for (int j = 0; j < 8; ++j) total += part_of_x[column * BLOCK_QUADS + j * LANES].x;
        part_of_x[column * BLOCK_QUADS].y = inversesqrt(total / float(k) + eps);
    }
    workgroup_barrier();
}
#endif

void main() {
    index = int(gl_LocalInvocationIndex);
    lane = index / 4 % LANES;
    group = index / (4 * LANES) * 4 + index % 4;
    row = (int(WORKGROUP_ID.y) * ROW_GROUPS + group) * (ROWS / HALVES);
    top = int(WORKGROUP_ID.z) * COLUMNS;
    for (int i = 0; i < SUMS; ++i) sum[i] = 0.0;
#if HAS_NORM
    for (int j = 0; j < LOADS; ++j) squares[j] = 0.0;
#endif
    load_block(0);
#if WORDS_AHEAD
    UnitWords words_next[ROWS];
    for (int i = 0; i < ROWS; ++i) words_next[i] = unit_words(unit_of(i, lane));
#endif
    for (int first = 0; first < units; first += LANES) {
#if WORDS_AHEAD
        for (int i = 0; i < ROWS; ++i) words[i] = words_next[i];
#elif UNIT_QUADS <= 2
        for (int i = 0; i < ROWS; ++i) words[i] = unit_words(unit_of(i, first + lane));
#endif
        if (first > 0) workgroup_barrier();
        store_block(first);
        workgroup_barrier();
        load_block(first + LANES);
#if WORDS_AHEAD
        for (int i = 0; i < ROWS; ++i) words_next[i] = unit_words(unit_of(i, first + LANES + lane));
#endif
        if (first + lane < units) multiply(first + lane);
    }
#if HAS_NORM
    find_scales();
    float scale_of_row[COLUMNS];
    for (int column = 0; column < COLUMNS; ++column) scale_of_row[column] = part_of_x[column * BLOCK_QUADS].y;
    for (int i = 0; i < ROWS; ++i)
        for (int column = 0; column < COLUMNS; ++column)
            sum[sum_index(i, column)] *= scale_of_row[column];
#endif
    ADD(0) ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6) ADD(7)
    ADD(8) ADD(9) ADD(10) ADD(11) ADD(12) ADD(13) ADD(14) ADD(15)
    workgroup_barrier();
    for (int i = index; i < RESULTS * COLUMNS; i += INVOCATIONS) {
        int tile_column = i % RESULTS, x_index = i / RESULTS;
        int result_group = tile_column / (ROWS / HALVES), group_row = tile_column % (ROWS / HALVES);
        int first = sum_index(group_row * HALVES, x_index);
        vec4 four = part_of_x[result_group * FOURS + first / 4];
        float value = four[first % 4];
#if GATE
        value = gated(value) * four[first % 4 + 1];
#endif
        int column = int(WORKGROUP_ID.y) * RESULTS + tile_column;
        if (column < n && top + x_index < m) finish(value, column, (top + x_index) * out_row + column);
    }
}
