#version 310 es
// x W^T for a row of x and packed weights. LANES invocations walk along the units of a row of weights
// side by side, ROW_GROUPS of them at ROWS rows each; the workgroup's share of x, of STEPS units an
// invocation, is in shared memory, where neighbours read neighbouring vec4s. Four sums of products are
// added up side by side, and multiplied by the unit's scale only once; the minimum is by the sum of its
// x. With HAS_NORM the root of the mean of squares, of which the invocations add up what they load,
// divides the sums at the end. LANES invocations that are a subgroup add up their sums at once.
// UNROLLED takes one row of weights after the other and writes the parts of a unit out, for compilers that
// keep long loops, and for few registers.
#ifndef LANES
#define LANES 32
#endif
#ifndef ROW_GROUPS
#define ROW_GROUPS 2
#endif
#ifndef ROWS
#define ROWS 2
#endif
#ifndef STEPS
#define STEPS 1
#endif
#ifndef UNROLLED
#define UNROLLED 0
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
layout(std430, binding = 1) readonly buffer Weight { uvec4 weight[]; };
#define PACKED(i) weight[i]
#include "common/quantized.glsl"
#include "matmul/scalar.glsl"
#include "quantized_matmul/gate.glsl"
#if HAS_NORM
layout(std430, binding = 3) buffer Norm { vec4 norm[]; };
uniform float eps;
float squares = 0.0;  // of what this invocation loaded
#endif
uniform int n, k, units;
uniform int x_row, out_row;  // floats, multiples of 4
#define SUMS (HALVES * ROWS)
#define STRIDE (STEPS * LANES + 1)  // vec4s from a part of the units to the next: another bank for each
#define SHARE (8 * STEPS * LANES)   // vec4s of x that are shared
#define PARTS (FORMAT == Q6_K || FORMAT == INTEGER && BLOCK < 32 ? 2 : 1)  // with scales of their own
#if FORMAT == F32
#define FOURS min(8 * units, 8)  // 8, which Mali's compiler must not know: it loads all first, and spills
#else
#define FOURS 8
#endif
shared vec4 part_of_x[8 * STRIDE];
shared float sums[ROW_GROUPS * SUMS * LANES];
float sum[SUMS];  // of a row of weights and what this invocation takes of x

// Puts the numbers of STEPS LANES units of x from `first` on into shared memory, those behind k as zeros.
void share(int first, int of_row) {
    int count = min(SHARE, 8 * (units - first));
    for (int place = int(gl_LocalInvocationIndex); place < count; place += LANES * ROW_GROUPS) {
        int quad = first * 8 + place, left = k - 4 * quad;
        vec4 a = left > 0 ? first_of(x_at(of_row * (x_row / 4) + quad), left) : vec4(0.0);
#if HAS_NORM
        squares += dot(a, a);
        if (left > 0) a *= first_of(norm[quad], left);
#endif
        part_of_x[place % 8 * STRIDE + place / 8] = a;
    }
}

int numbers[SUMS];  // of the units at hand, one of each row
#if UNIT_QUADS <= 2
UnitWords words[SUMS];
#define SCALE_WORDS(i) words[i].scales
#define QUANT_WORDS(i, part) words_of(words[i], part)
#else
#define SCALE_WORDS(i) scale_words(numbers[i])
#define QUANT_WORDS(i, part) quant_words(numbers[i], part)
#endif
Scales scales[SUMS];
vec4 products[PARTS * SUMS], of_x;

// Begins with a unit of row `row` + i of weights.
void load(int i, int row, int unit) {
    numbers[i] = (min(row + i / HALVES, n - 1) + i % HALVES * n) * units + unit;
#if UNIT_QUADS <= 2
    words[i] = unit_words(numbers[i]);
#endif
    scales[i] = scales_of(SCALE_WORDS(i), numbers[i]);
    for (int j = 0; j < PARTS; ++j) products[PARTS * i + j] = vec4(0.0);
}

void add_part(int i, int part, vec4 a) {
    of_x += i > 0 ? vec4(0.0) : a;
    products[PARTS * i + part * PARTS / 8] +=
        values_of(QUANT_WORDS(i, part), part, scales[i].zeros) * a;
}

void add_sum(int i) {
    for (int j = 0; j < PARTS; ++j)
        sum[i] += scales[i].scale[j] * dot(products[PARTS * i + j], vec4(1.0));
#if HAS_MINIMUM
    sum[i] += scales[i].minimum * dot(of_x, vec4(1.0));
#endif
}

// Adds up the products of a unit of each row from `row` on, of which x is shared at `place`.
void add_unit(int row, int unit, int place) {
    of_x = vec4(0.0);
#if UNROLLED
#define ADD(part) add_part(i, part, part_of_x[part * STRIDE + place]);
    for (int i = 0; i < SUMS; ++i) {
        load(i, row, unit);
        ADD(0) ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6) ADD(7)
        add_sum(i);
    }
#else
    for (int i = 0; i < SUMS; ++i) load(i, row, unit);
    for (int part = 0; part < FOURS; ++part) {
        vec4 a = part_of_x[part * STRIDE + place];
        for (int i = 0; i < SUMS; ++i) add_part(i, part, a);
    }
    for (int i = 0; i < SUMS; ++i) add_sum(i);
#endif
}

void main() {
    int lane = int(gl_LocalInvocationID.x), group = int(gl_LocalInvocationID.y);
    int row = (int(WORKGROUP_ID.y) * ROW_GROUPS + group) * ROWS, of_row = int(WORKGROUP_ID.z);
    for (int i = 0; i < SUMS; ++i) sum[i] = 0.0;
    for (int first = 0; first < units; first += STEPS * LANES) {
        if (first > 0) wait();
        share(first, of_row);
        wait();
#if STEPS > 1
        if (first + STEPS * LANES <= units) {  // loads of several units may be under way
            for (int step = 0; step < STEPS; ++step)
                add_unit(row, first + step * LANES + lane, step * LANES + lane);
            continue;
        }
#endif
        for (int place = lane; place < min(STEPS * LANES, units - first); place += LANES)
            add_unit(row, first + place, place);
    }
#if HAS_NORM && SUBGROUP_SIZE == LANES
    squares = subgroupAdd(squares);
    if (lane == 0) sums[group] = squares;
    wait();
    squares = 0.0;
    for (int i = 0; i < ROW_GROUPS; ++i) squares += sums[i];
#elif HAS_NORM
    int here = int(gl_LocalInvocationIndex);
    sums[here] = squares;
    for (int width = LANES * ROW_GROUPS / 2; width > 0; width /= 2) {
        wait();
        if (here < width) sums[here] += sums[here + width];
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
    for (int i = 0; i < SUMS; ++i) sum[i] = subgroupAdd(sum[i]);
#else
    int begin = group * SUMS * LANES;
    for (int i = 0; i < SUMS; ++i) sums[begin + i * LANES + lane] = sum[i];
    for (int width = LANES / 2; width > 0; width /= 2) {
        wait();
        if (lane < width)
            for (int i = 0; i < SUMS; ++i)
                sums[begin + i * LANES + lane] += sums[begin + i * LANES + lane + width];
    }
    wait();
    for (int i = 0; i < SUMS; ++i) sum[i] = sums[begin + i * LANES];
#endif
    for (int i = 0; i < ROWS; ++i) {
        float found = sum[i * HALVES] * divisor;
#if GATE
        found = gated(found) * (sum[i * HALVES + 1] * divisor);
#endif
        if (lane == 0 && row + i < n) finish(found, row + i, of_row * out_row + row + i);
    }
}
