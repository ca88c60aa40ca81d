// Rows of a product that are normalised where they are complete (matmul_normalize): of the workgroups
// that compute tiles of the same rows the last one does it, which counting them tells. None waits
// for another. `result` is coherent.
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
#define ROW_LANES (ROW_QUADS <= 128 ? 8 : ROW_QUADS <= 256 ? 16 : 32)
#define ROW_LOADS ((ROW_QUADS + ROW_LANES - 1) / ROW_LANES)
#if 2 * BK * AM < INVOCATIONS
#error too little shared memory for what lanes find of rows
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

vec4 add_residual(vec4 sums, int at, int quad) {
#if HAS_BIAS
    sums += bias[quad];
#endif
#if HAS_RESIDUAL
    sums += residual[at * columns + quad];
#endif
    return sums;
}

// The sum over the lanes of a row of what each has.
float sum_of_row(float own) {
    a_tile[lane] = own;
    wait();
    int first = lane / ROW_LANES * ROW_LANES;
    float total = 0.0;
    for (int i = 0; i < ROW_LANES; ++i) total += a_tile[first + i];
    wait();
    return total;
}

// `v`, of four numbers of a row that begin at number 4 `quad`, without what is padding.
vec4 of_row(vec4 v, int quad) {
#if ROW_LENGTH % 4
    return first_of(v, ROW_LENGTH - 4 * quad);
#else
    return quad < ROW_QUADS ? v : vec4(0.0);
#endif
}

void normalize_rows() {
    for (int top = 0; top < BM; top += INVOCATIONS / ROW_LANES) {
        int of_tile = top + lane / ROW_LANES, at = tile_row + of_tile, first = lane % ROW_LANES;
        int begin = out_at + min(at, m - 1) * (out_row / 4);
        vec4 kept[ROW_LOADS];
        for (int i = 0; i < ROW_LOADS; ++i)
            kept[i] = result[begin + min(first + i * ROW_LANES, ROW_QUADS - 1)];
        float sums = 0.0, squares = 0.0;
        for (int i = 0; i < ROW_LOADS; ++i)
            sums += dot(of_row(kept[i], first + i * ROW_LANES), vec4(1.0));
        float mean = sum_of_row(sums) / float(ROW_LENGTH);
        for (int i = 0; i < ROW_LOADS; ++i) {
            kept[i] = of_row(kept[i] - mean, first + i * ROW_LANES);
            squares += dot(kept[i], kept[i]);
        }
        float variance = sum_of_row(squares) / float(ROW_LENGTH) + eps;
        // The roots of what is not finite are the driver's own.
        float by = is_nan(variance) ? variance : is_finite(variance) ? 1.0 / sqrt(variance) : 0.0;
        for (int i = 0; i < ROW_LOADS; ++i) {
            int quad = first + i * ROW_LANES;
            vec4 value = kept[i] * by;
#if HAS_SCALE
            value *= scale[min(quad, ROW_QUADS - 1)];
#endif
#if HAS_SHIFT
            value += shift[min(quad, ROW_QUADS - 1)];
#endif
            kept[i] = value;
        }
        for (int i = 0; i < ROW_LOADS; ++i) {
            int quad = first + i * ROW_LANES;
            if (of_tile < BM && at < m && quad < ROW_QUADS) result[begin + quad] = kept[i];
        }
    }
}

// Normalises the rows of the tile if all tiles of these are complete.
void normalize_if_last() {
    memoryBarrierBuffer();  // this tile is there before its arrival is
    wait();
    if (lane == 0) {
        int block = tile_row / BM;
        uint before = arrivals[MOST_BLOCKS];
        bool last = atomicAdd(arrivals[block], 1u) + 1u - before == WORKGROUP_COUNT.x;
        if (last) atomicExchange(arrivals[block], before);
        is_last = uint(last);
    }
    wait();
    if (is_last == 0u) return;
    memoryBarrierBuffer();  // the others' tiles are read behind their arrivals
    normalize_rows();
}
