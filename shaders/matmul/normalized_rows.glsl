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
#ifndef SUBGROUP_SIZE
#define SUBGROUP_SIZE 0
#endif
#define NORM_LANES 32  // of a row
#define NORM_LOADS ((ROW_QUADS + NORM_LANES - 1) / NORM_LANES)
#define NORM_GROUPS (BLOCK_INVOCATIONS / NORM_LANES)
// Rows that lanes have at once, so that their loads are under way together.
#if ROW_QUADS <= 96 && 4 * NORM_GROUPS <= BLOCK_ROWS
#define NORM_ROWS 4
#elif ROW_QUADS <= 192 && 2 * NORM_GROUPS <= BLOCK_ROWS
#define NORM_ROWS 2
#else
#define NORM_ROWS 1
#endif
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
#if SUBGROUP_SIZE == NORM_LANES
    return subgroupAdd(own);
#else
    wait();  // others may still read what was there before
    SHARED_FLOAT(invocation) = own;
    wait();
    float total = 0.0;
    int first = invocation / NORM_LANES * NORM_LANES;
    for (int i = 0; i < NORM_LANES; ++i) total += SHARED_FLOAT(first + i);
    return total;
#endif
}

// Four numbers of a row without its padding.
vec4 without_padding(vec4 v, int quad) {
#if ROW_LENGTH % 4
    return first_of(v, ROW_LENGTH - 4 * quad);
#else
    return quad < ROW_QUADS ? v : vec4(0.0);
#endif
}

// Normalises the rows from `first` on.
void normalize_rows(int first, int invocation) {
    int lane = invocation % NORM_LANES, group = invocation / NORM_LANES;
#if HAS_SCALE
    vec4 scales[NORM_LOADS];
    for (int i = 0; i < NORM_LOADS; ++i) scales[i] = scale[min(lane + i * NORM_LANES, ROW_QUADS - 1)];
#endif
#if HAS_SHIFT
    vec4 shifts[NORM_LOADS];
    for (int i = 0; i < NORM_LOADS; ++i) shifts[i] = shift[min(lane + i * NORM_LANES, ROW_QUADS - 1)];
#endif
    int rows = min(BLOCK_ROWS, m - first);
    for (int top = group; top - group < rows; top += NORM_ROWS * NORM_GROUPS) {
        vec4 kept[NORM_ROWS * NORM_LOADS];
        float by[NORM_ROWS];
        for (int r = 0; r < NORM_ROWS; ++r) {
            int begin = out_first / 4 + (first + min(top + r * NORM_GROUPS, rows - 1)) * (out_row / 4);
            for (int i = 0; i < NORM_LOADS; ++i)
                kept[r * NORM_LOADS + i] = result[begin + min(lane + i * NORM_LANES, ROW_QUADS - 1)];
        }
        for (int r = 0; r < NORM_ROWS; ++r) {
            float sums = 0.0, squares = 0.0;
            for (int i = 0; i < NORM_LOADS; ++i) {
                vec4 v = without_padding(kept[r * NORM_LOADS + i], lane + i * NORM_LANES);
                sums += dot(v, vec4(1.0));
            }
            float mean = sum_of_lanes(sums, invocation) / float(ROW_LENGTH);
            for (int i = 0; i < NORM_LOADS; ++i) {
                vec4 v = without_padding(kept[r * NORM_LOADS + i] - mean, lane + i * NORM_LANES);
                kept[r * NORM_LOADS + i] = v;
                squares += dot(v, v);
            }
            float variance = sum_of_lanes(squares, invocation) / float(ROW_LENGTH) + eps;
            // The roots of what is not finite are the driver's own.
            by[r] = is_nan(variance) ? variance : is_finite(variance) ? 1.0 / sqrt(variance) : 0.0;
        }
        for (int r = 0; r < NORM_ROWS; ++r) {
            int row = top + r * NORM_GROUPS, begin = out_first / 4 + (first + row) * (out_row / 4);
            for (int i = 0; i < NORM_LOADS; ++i) {
                vec4 v = kept[r * NORM_LOADS + i] * by[r];
#if HAS_SCALE
                v *= scales[i];
#endif
#if HAS_SHIFT
                v += shifts[i];
#endif
                int quad = lane + i * NORM_LANES;
                if (row < rows && quad < ROW_QUADS) result[begin + quad] = v;
            }
        }
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
    normalize_rows(first, invocation);
}
