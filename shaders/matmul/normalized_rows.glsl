// Normalisation of the rows of a product by the last of the workgroups that compute tiles of the same
// rows (matmul_normalize). Each counts itself when its tile is stored, so none waits for another, and
// the last one leaves the count as it was. A workgroup has BLOCK_ROWS rows and BLOCK_INVOCATIONS;
// SHARED_FLOAT(i) is shared memory that is free then, which has as many floats; `result` is coherent.
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_RESIDUAL
#define HAS_RESIDUAL 0
#endif
#ifndef HAS_SCALE
#define HAS_SCALE 0
#endif
#ifndef HAS_SHIFT
#define HAS_SHIFT 0
#endif
#define ROW_QUADS ((ROW_LENGTH + 3) / 4)
// As many lanes a row as there are, but no more than 32; at least as many as have few numbers each.
#if BLOCK_INVOCATIONS >= 32 * BLOCK_ROWS || ROW_QUADS > 256
#define NORM_LANES 32
#elif BLOCK_INVOCATIONS >= 16 * BLOCK_ROWS || ROW_QUADS > 128
#define NORM_LANES 16
#else
#define NORM_LANES 8
#endif
#define NORM_LOADS ((ROW_QUADS + NORM_LANES - 1) / NORM_LANES)
#if HAS_BIAS
layout(std430, binding = 3) buffer Bias { vec4 bias[]; };
#endif
#if HAS_RESIDUAL
layout(std430, binding = 4) buffer Residual { vec4 residual[]; };
#endif
#if HAS_SCALE
layout(std430, binding = 5) buffer Scale { vec4 scale[]; };
#endif
#if HAS_SHIFT
layout(std430, binding = 6) buffer Shift { vec4 shift[]; };
#endif
layout(std430, binding = 7) coherent buffer Arrivals { uint arrivals[]; };
uniform float eps;
shared uint is_last;

// Four sums of row `at` with their bias and residual.
vec4 add_residual(vec4 sums, int at, int quad) {
#if HAS_BIAS
    sums += bias[quad];
#endif
#if HAS_RESIDUAL
    sums += residual[at * ROW_QUADS + quad];
#endif
    return sums;
}

// The sum of what the lanes of a row have.
float sum_of_lanes(float own, int invocation) {
    SHARED_FLOAT(invocation) = own;
    wait();
    int first = invocation / NORM_LANES * NORM_LANES;
    float total = 0.0;
    for (int i = 0; i < NORM_LANES; ++i) total += SHARED_FLOAT(first + i);
    wait();
    return total;
}

// Four numbers of a row without its padding.
vec4 without_padding(vec4 v, int quad) {
#if ROW_LENGTH % 4
    return first_of(v, ROW_LENGTH - 4 * quad);
#else
    return quad < ROW_QUADS ? v : vec4(0.0);
#endif
}

// Normalises row `at`; its lanes are `lane` and those beside it. is_row: whether it is one.
void normalize_row(int at, int lane, int invocation, bool is_row) {
    int begin = out_first / 4 + min(at, m - 1) * (out_row / 4);
    vec4 kept[NORM_LOADS];
    for (int i = 0; i < NORM_LOADS; ++i)
        kept[i] = result[begin + min(lane + i * NORM_LANES, ROW_QUADS - 1)];
    float sums = 0.0, squares = 0.0;
    for (int i = 0; i < NORM_LOADS; ++i)
        sums += dot(without_padding(kept[i], lane + i * NORM_LANES), vec4(1.0));
    float mean = sum_of_lanes(sums, invocation) / float(ROW_LENGTH);
    for (int i = 0; i < NORM_LOADS; ++i) {
        kept[i] = without_padding(kept[i] - mean, lane + i * NORM_LANES);
        squares += dot(kept[i], kept[i]);
    }
    float variance = sum_of_lanes(squares, invocation) / float(ROW_LENGTH) + eps;
    // The roots of what is not finite are the driver's own.
    float by = is_nan(variance) ? variance : is_finite(variance) ? 1.0 / sqrt(variance) : 0.0;
    for (int i = 0; i < NORM_LOADS; ++i) {
        kept[i] *= by;
#if HAS_SCALE
        kept[i] *= scale[min(lane + i * NORM_LANES, ROW_QUADS - 1)];
#endif
#if HAS_SHIFT
        kept[i] += shift[min(lane + i * NORM_LANES, ROW_QUADS - 1)];
#endif
    }
    for (int i = 0; i < NORM_LOADS; ++i) {
        int quad = lane + i * NORM_LANES;
        if (is_row && quad < ROW_QUADS) result[begin + quad] = kept[i];
    }
}

// Normalises the rows from `first` on if all tiles of these are complete. invocation: the number of
// this one.
void normalize_if_last(int first, int invocation) {
    memoryBarrierBuffer();  // this tile is stored before it is counted
    wait();
    if (invocation == 0) {
        int block = first / BLOCK_ROWS;
        uint before = arrivals[MOST_BLOCKS];
        bool last = atomicAdd(arrivals[block], 1u) + 1u - before == WORKGROUP_COUNT.x;
        if (last) atomicExchange(arrivals[block], before);
        is_last = uint(last);
    }
    wait();
    if (is_last == 0u) return;
    memoryBarrierBuffer();  // the others' tiles are read behind their counts
    for (int top = 0; top < BLOCK_ROWS; top += BLOCK_INVOCATIONS / NORM_LANES) {
        int row = top + invocation / NORM_LANES, lane = invocation % NORM_LANES;
        normalize_row(first + row, lane, invocation, row < BLOCK_ROWS && first + row < m);
    }
}
