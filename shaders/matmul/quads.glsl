// The sums of TM rows by 4 TN columns in registers, for gemm_blocked and others; a step is four depths along
// k. See matmul/operands.glsl; weights that are neither row- nor column-major are tiles of 4 x 4: for each
// depth a vec4 of four columns. UNROLL steps at a time are loaded before any is multiplied.
#ifndef UNROLL
#define UNROLL 1
#endif
uniform int m, n, k;
uniform int x_first, x_row, x_rows, out_row;  // floats, multiples of 4
uniform int weight_row, weight_rows, weight_matrix;
uniform int image_rows;
#define PROLOGUE_CHANNELS k
#include <prologue>

// Offset of x in vec4, not 0 where it is some columns of wider rows (X_STRIP). It is a constant where it can
// be, since Mali's compiler has no register left for it.
#ifndef X_STRIP
#define X_STRIP 0
#endif
#if X_STRIP
#define X_BEGIN (x_first >> 2)
#else
#define X_BEGIN 0
#endif

vec4 sum[TM * TN];

// Depth `l` of a step. ragged: the step reaches past k, where the memory may hold anything.
int depth_of(int step, int l, bool ragged) {
    return ragged ? min(4 * step + l, k - 1) : 4 * step + l;
}

#ifndef CENTRED
#define CENTRED 0
#endif
#if CENTRED
vec2 own_norms[TM];  // of each row the mean, and the factor of numbers less the mean
#endif

// Applies the normalisation and the prologue to a step of TM rows from `row` on.
void prepare(inout vec4 a[TM], int row, int last, int step) {
#if CENTRED
    for (int i = 0; i < TM; ++i) a[i] = (a[i] - own_norms[i].x) * own_norms[i].y;
#endif
    for (int i = 0; i < TM; ++i) a[i] = prologue(a[i], step, min(row + i, last) / image_rows);
}

// Loads a step of TM rows from `row` on; rows past `last` repeat it.
void load_rows(out vec4 a[TM], int row, int last, int step, bool ragged) {
#if !X_IN_C
    int first = row * (x_row >> 2) + X_BEGIN + step;
    for (int i = 0; i < TM; ++i) a[i] = x_at(first + min(i, last - row) * (x_row / 4));
#elif TM % 4 == 0
    for (int i = 0; i < TM; i += 4) {
        int quad = min((row + i) / 4, last / 4);
        for (int l = 0; l < 4; ++l) {
            vec4 rows = x_at(depth_of(step, l, ragged) * (x_rows / 4) + quad);
            for (int j = 0; j < 4; ++j) a[i + j][l] = rows[j];
        }
    }
#else
    for (int i = 0; i < TM; ++i) {
        int x_index = min(row + i, last);
        for (int l = 0; l < 4; ++l)
            a[i][l] = x_at(depth_of(step, l, ragged) * (x_rows / 4) + x_index / 4)[x_index % 4];
    }
#endif
}

// Four of the 16 weights of a step and a quad of columns: those of depth `l` or, if weights are row-major,
// those of column `l`.
vec4 load_weights(int matrix, int quad, int step, int l, bool ragged) {
#if WEIGHT_IN_R4
    int first = matrix * (weight_row / 4), stride = WEIGHT_ROW / 4;
    vec4 weights = weight_at(first + min(4 * quad + l, n - 1) * stride + step);
    return ragged ? first_of(weights, k - 4 * step) : weights;
#elif WEIGHT_IN_C
    int depth = depth_of(step, l, ragged);
    vec4 weights = weight_at(matrix * (weight_matrix / 4) + depth * (weight_rows / 4) + quad);
    return ragged && 4 * step + l >= k ? vec4(0.0) : weights;
#else
    return weight_at(matrix * (weight_matrix / 4) + (step * (weight_rows / 4) + quad) * 4 + l);
#endif
}

// Adds the products of a row's step `a` and such weights `b` to its sums of four columns.
vec4 plus(vec4 sum, vec4 a, vec4 b, int l) {
#if WEIGHT_IN_R4
    sum[l] = sum[l] + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    return sum;
#else
    return sum + a[l] * b;
#endif
}

// Adds a step to the sums of the tile that begins at `row` and the quad `column`.
void accumulate_step(int matrix, int row, int column, int step, bool ragged) {
    int columns = (n + 3) / 4, last = matrix * m + m - 1;
    row += matrix * m;
#if X_IN_C && !WEIGHT_IN_R4 && TM % 4 == 0
    for (int l = 0; l < 4; ++l) {
        vec4 a[TM / 4];
        int first = depth_of(step, l, ragged) * (x_rows / 4);
        for (int i = 0; i < TM / 4; ++i) a[i] = x_at(first + min(row / 4 + i, last / 4));
        if (ragged && 4 * step + l >= k) break;
        for (int j = 0; j < TN; ++j) {
            vec4 b = load_weights(matrix, min(column + j, columns - 1), step, l, ragged);
            for (int i = 0; i < TM; ++i) sum[i * TN + j] += a[i / 4][i % 4] * b;
        }
    }
#else
    vec4 a[TM];
    load_rows(a, row, last, step, ragged);
    prepare(a, row, last, step);
    if (ragged)
        for (int i = 0; i < TM; ++i) a[i] = first_of(a[i], k - 4 * step);
    for (int j = 0; j < TN; ++j) {
        for (int l = 0; l < 4; ++l) {
            vec4 b = load_weights(matrix, min(column + j, columns - 1), step, l, ragged);
            for (int i = 0; i < TM; ++i) sum[i * TN + j] = plus(sum[i * TN + j], a[i], b, l);
        }
    }
#endif
}

#if UNROLL > 1
// Adds UNROLL whole steps from `step` on.
void accumulate_several(int matrix, int row, int column, int step) {
    int columns = (n + 3) / 4, last = matrix * m + m - 1;
    row += matrix * m;
    vec4 a[UNROLL][TM], b[UNROLL][4 * TN];
    for (int u = 0; u < UNROLL; ++u) {
        load_rows(a[u], row, last, step + u, false);
        for (int i = 0; i < 4 * TN; ++i) {
            int quad = min(column + i / 4, columns - 1);
            b[u][i] = load_weights(matrix, quad, step + u, i % 4, false);
        }
    }
    for (int u = 0; u < UNROLL; ++u) {
        prepare(a[u], row, last, step + u);
        for (int i = 0; i < TM; ++i)
            for (int j = 0; j < 4 * TN; ++j) {
                int s = i * TN + j / 4;
                sum[s] = plus(sum[s], a[u][i], b[u][j], j % 4);
            }
    }
}
#endif

// Sums the products of every `stride`-th step along k from step `first_step` on, or of every `stride`-th run of
// UNROLL steps. Where the weights are tiles, the loop is written out and tests for the last, ragged step
// inside: otherwise Mali's and V3D's compilers spill.
void accumulate(int matrix, int row, int column, int first_step, int stride) {
    for (int i = 0; i < TM * TN; ++i) sum[i] = vec4(0.0);
#if UNROLL > 1
    int groups = k / 4 / UNROLL;
    for (int group = first_step; group < groups; group += stride)
        accumulate_several(matrix, row, column, group * UNROLL);
    first_step += groups * UNROLL;
#endif
#if X_IN_C || WEIGHT_IN_R4 || WEIGHT_IN_C
    int step = first_step;
    for (; step < k / 4; step += stride) accumulate_step(matrix, row, column, step, false);
    if (k % 4 > 0 && step == k / 4) accumulate_step(matrix, row, column, step, true);
#else
    int x_pitch = x_row >> 2, columns = (n + 3) / 4;
    int first = (matrix * m + row) * x_pitch + X_BEGIN, last = m - 1 - row;
    int tiles = matrix * (weight_matrix / 4);
    int steps = (k + 3) / 4;
    for (int step = first_step; step < steps; step += stride) {
        vec4 a[TM];
        for (int i = 0; i < TM; ++i) a[i] = x_at(first + min(i, last) * x_pitch + step);
        prepare(a, matrix * m + row, matrix * m + m - 1, step);
        if (4 * step + 4 > k)  // the row's padding may hold anything
            for (int i = 0; i < TM; ++i) a[i] = first_of(a[i], k - 4 * step);
        for (int j = 0; j < TN; ++j) {
            int tile = tiles + (step * (weight_rows / 4) + min(column + j, columns - 1)) * 4;
            for (int l = 0; l < 4; ++l) {
                vec4 b = weight_at(tile + l);
                for (int i = 0; i < TM; ++i) sum[i * TN + j] += a[i][l] * b;
            }
        }
    }
#endif
}
