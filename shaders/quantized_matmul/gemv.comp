#version 310 es
// x W^T for a row of x and packed weights. LANES invocations step together along the units of ROWS rows of
// weights; a workgroup has ROW_GROUPS such groups. A block of x, of STEPS units an invocation, is in shared
// memory, where neighbours read neighbouring vec4. The products of a unit are added up in a vec4 of sums, and
// multiplied by the unit's scale only once; the minimum is multiplied by the sum of the unit's x. With HAS_NORM
// the sums are divided at the end by the root mean square of x, for which the invocations add up the squares of
// what they load. LANES invocations that are a subgroup add their sums by a subgroup operation. UNROLLED
// computes one row of weights after the other and writes out the parts of a unit, for compilers that do not
// unroll long loops, and for few registers.
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
#include "common/barrier.glsl"
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
#define STRIDE (STEPS * LANES + 1)  // pitch of a part of the units in vec4: the next begins in another bank
#define BLOCK_QUADS (8 * STEPS * LANES)  // vec4 of x in a block
#define PARTS (FORMAT == Q6_K || FORMAT == INTEGER && BLOCK < 32 ? 2 : 1)  // with scales of their own
#if FORMAT == F32
#define FOURS min(8 * units, 8)  // 8, but not a constant: Mali's compiler would load all first, and spill
#else
#define FOURS 8
#endif
shared vec4 part_of_x[8 * STRIDE];
shared float sums[ROW_GROUPS * SUMS * LANES];
float sum[SUMS];  // of a row of weights and what this invocation takes of x

// Loads the STEPS LANES units of x from `first` on to shared memory, with zeros past k.
void load_block(int first, int x_index) {
    int count = min(BLOCK_QUADS, 8 * (units - first));
    for (int place = int(gl_LocalInvocationIndex); place < count; place += LANES * ROW_GROUPS) {
        int quad = first * 8 + place, left = k - 4 * quad;
        vec4 a = left > 0 ? first_of(x_at(x_index * (x_row / 4) + quad), left) : vec4(0.0);
#if HAS_NORM
        squares += dot(a, a);
        if (left > 0) a *= first_of(norm[quad], left);
#endif
        part_of_x[place % 8 * STRIDE + place / 8] = a;
    }
}

int unit_indices[SUMS];  // of the units being multiplied, one of each row
#if UNIT_QUADS <= 2
UnitWords words[SUMS];
#define SCALE_WORDS(i) words[i].scales
#define QUANT_WORDS(i, part) words_of(words[i], part)
#else
#define SCALE_WORDS(i) scale_words(unit_indices[i])
#define QUANT_WORDS(i, part) quant_words(unit_indices[i], part)
#endif
Scales scales[SUMS];
vec4 products[PARTS * SUMS], x_sum;  // sums of a unit: of products, and of x

// Loads a unit of the i-th row of weights from `row` on, and clears its products.
void begin_unit(int i, int row, int unit) {
    unit_indices[i] = (min(row + i / HALVES, n - 1) + i % HALVES * n) * units + unit;
#if UNIT_QUADS <= 2
    words[i] = unit_words(unit_indices[i]);
#endif
    scales[i] = scales_of(SCALE_WORDS(i), unit_indices[i]);
    for (int j = 0; j < PARTS; ++j) products[PARTS * i + j] = vec4(0.0);
}

void add_part(int i, int part, vec4 a) {
    x_sum += i > 0 ? vec4(0.0) : a;
    products[PARTS * i + part * PARTS / 8] +=
        values_of(QUANT_WORDS(i, part), part, scales[i].zeros) * a;
}

void add_sum(int i) {
    for (int j = 0; j < PARTS; ++j)
        sum[i] += scales[i].scale[j] * dot(products[PARTS * i + j], vec4(1.0));
#if HAS_MINIMUM
    sum[i] += scales[i].minimum * dot(x_sum, vec4(1.0));
#endif
}

// Adds the products of a unit of each row from `row` on. place: index of the unit in the block of x.
void add_unit(int row, int unit, int place) {
    x_sum = vec4(0.0);
#if UNROLLED
#define ADD(part) add_part(i, part, part_of_x[part * STRIDE + place]);
    for (int i = 0; i < SUMS; ++i) {
        begin_unit(i, row, unit);
        ADD(0) ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6) ADD(7)
        add_sum(i);
    }
#else
    for (int i = 0; i < SUMS; ++i) begin_unit(i, row, unit);
    for (int part = 0; part < FOURS; ++part) {
        vec4 a = part_of_x[part * STRIDE + place];
        for (int i = 0; i < SUMS; ++i) add_part(i, part, a);
    }
    for (int i = 0; i < SUMS; ++i) add_sum(i);
#endif
}

void main() {
    int lane = int(gl_LocalInvocationID.x), group = int(gl_LocalInvocationID.y);
    int row = (int(WORKGROUP_ID.y) * ROW_GROUPS + group) * ROWS, x_index = int(WORKGROUP_ID.z);
    for (int i = 0; i < SUMS; ++i) sum[i] = 0.0;
    for (int first = 0; first < units; first += STEPS * LANES) {
        if (first > 0) workgroup_barrier();
        load_block(first, x_index);
        workgroup_barrier();
#if STEPS > 1
        if (first + STEPS * LANES <= units) {  // so that loads of several units may be in flight
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
    workgroup_barrier();
    squares = 0.0;
    for (int i = 0; i < ROW_GROUPS; ++i) squares += sums[i];
#elif HAS_NORM
    int invocation = int(gl_LocalInvocationIndex);
    sums[invocation] = squares;
    for (int width = LANES * ROW_GROUPS / 2; width > 0; width /= 2) {
        workgroup_barrier();
        if (invocation < width) sums[invocation] += sums[invocation + width];
    }
    workgroup_barrier();
    squares = sums[0];
    workgroup_barrier();
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
        workgroup_barrier();
        if (lane < width)
            for (int i = 0; i < SUMS; ++i)
                sums[begin + i * LANES + lane] += sums[begin + i * LANES + lane + width];
    }
    workgroup_barrier();
    for (int i = 0; i < SUMS; ++i) sum[i] = sums[begin + i * LANES];
#endif
    for (int i = 0; i < ROWS; ++i) {
        float value = sum[i * HALVES] * divisor;
#if GATE
        value = gated(value) * (sum[i * HALVES + 1] * divisor);
#endif
        if (lane == 0 && row + i < n) finish(value, row + i, x_index * out_row + row + i);
    }
}
