// The sums of TM rows by 4 TN columns, to which four numbers along k at a time are added, as
// gemm_blocked and gemm_split_k have them. See matmul/operands.glsl; weights in neither rows nor columns are tiles
// of 4 x 4, four vec4 of four columns each. UNROLL steps at a time are loaded before they are used.
#ifndef UNROLL
#define UNROLL 1
#endif
uniform int m, n, k;
uniform int x_first, x_row, x_rows, out_row;  // floats, multiples of 4
uniform int weight_row, weight_rows, weight_matrix;
uniform int image_rows;
#define PROLOGUE_CHANNELS k
#include <prologue>

// Where x begins: not at 0 where it is some columns of wider rows (X_STRIP). The test is for Mali's
// compiler, which has no register left where it is not.
#ifndef X_STRIP
#define X_STRIP 0
#endif
#if X_STRIP
#define X_BEGIN (x_first >> 2)
#else
#define X_BEGIN 0
#endif

vec4 sum[TM * TN];

// Where number l of a step lies along k; ragged: the step reaches beyond k, where anything may lie.
int depth_of(int step, int l, bool ragged) {
    return ragged ? min(4 * step + l, k - 1) : 4 * step + l;
}

#ifndef CENTRED
#define CENTRED 0
#endif
#if CENTRED
vec2 own_norms[TM];  // of each row the mean, and what its numbers less that are multiplied by
#endif

// Has the numbers of a step of TM rows from `row` on be normalised, and what the prologue makes of them.
void prepare(inout vec4 a[TM], int row, int last, int step) {
#if CENTRED
    for (int i = 0; i < TM; ++i) a[i] = (a[i] - own_norms[i].x) * own_norms[i].y;
#endif
    for (int i = 0; i < TM; ++i) a[i] = prologue(a[i], step, min(row + i, last) / image_rows);
}

// Loads the numbers of a step of TM rows from `row` on; those past `last` repeat it.
void take_rows(out vec4 a[TM], int row, int last, int step, bool ragged) {
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
        int at = min(row + i, last);
        for (int l = 0; l < 4; ++l)
            a[i][l] = x_at(depth_of(step, l, ragged) * (x_rows / 4) + at / 4)[at % 4];
    }
#endif
}

// Four of the 16 weights of a step by a quad of columns: those of number l along k, or, where the
// weights lie in rows, those of column l.
vec4 take_weights(int matrix, int quad, int step, int l, bool ragged) {
#if WEIGHT_IN_R4
    int first = matrix * (weight_row / 4), stride = WEIGHT_ROW / 4;
    vec4 found = weight_at(first + min(4 * quad + l, n - 1) * stride + step);
    return ragged ? first_of(found, k - 4 * step) : found;
#elif WEIGHT_IN_C
    int depth = depth_of(step, l, ragged);
    vec4 found = weight_at(matrix * (weight_matrix / 4) + depth * (weight_rows / 4) + quad);
    return ragged && 4 * step + l >= k ? vec4(0.0) : found;
#else
    return weight_at(matrix * (weight_matrix / 4) + (step * (weight_rows / 4) + quad) * 4 + l);
#endif
}

// A row's numbers of a step by such weights, added to its sums of four columns.
vec4 plus(vec4 sum, vec4 a, vec4 b, int l) {
#if WEIGHT_IN_R4
    sum[l] = sum[l] + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    return sum;
#else
    return sum + a[l] * b;
#endif
}

// Adds a step to the sums from `row` and the quad `column` on.
void add(int matrix, int row, int column, int step, bool ragged) {
    int columns = (n + 3) / 4, last = matrix * m + m - 1;
    row += matrix * m;
#if X_IN_C && !WEIGHT_IN_R4 && TM % 4 == 0
    for (int l = 0; l < 4; ++l) {
        vec4 a[TM / 4];
        int first = depth_of(step, l, ragged) * (x_rows / 4);
        for (int i = 0; i < TM / 4; ++i) a[i] = x_at(first + min(row / 4 + i, last / 4));
        if (ragged && 4 * step + l >= k) break;
        for (int j = 0; j < TN; ++j) {
            vec4 b = take_weights(matrix, min(column + j, columns - 1), step, l, ragged);
            for (int i = 0; i < TM; ++i) sum[i * TN + j] += a[i / 4][i % 4] * b;
        }
    }
#else
    vec4 a[TM];
    take_rows(a, row, last, step, ragged);
    prepare(a, row, last, step);
    if (ragged)
        for (int i = 0; i < TM; ++i) a[i] = first_of(a[i], k - 4 * step);
    for (int j = 0; j < TN; ++j) {
        for (int l = 0; l < 4; ++l) {
            vec4 b = take_weights(matrix, min(column + j, columns - 1), step, l, ragged);
            for (int i = 0; i < TM; ++i) sum[i * TN + j] = plus(sum[i * TN + j], a[i], b, l);
        }
    }
#endif
}

#if UNROLL > 1
// Adds UNROLL whole steps from `step` on.
void add_several(int matrix, int row, int column, int step) {
    int columns = (n + 3) / 4, last = matrix * m + m - 1;
    row += matrix * m;
    vec4 a[UNROLL][TM], b[UNROLL][4 * TN];
    for (int u = 0; u < UNROLL; ++u) {
        take_rows(a[u], row, last, step + u, false);
        for (int i = 0; i < 4 * TN; ++i) {
            int quad = min(column + i / 4, columns - 1);
            b[u][i] = take_weights(matrix, quad, step + u, i % 4, false);
        }
    }
    for (int u = 0; u < UNROLL; ++u) {
        prepare(a[u], row, last, step + u);
        for (int i = 0; i < TM; ++i)
            for (int j = 0; j < 4 * TN; ++j) {
                int at = i * TN + j / 4;
                sum[at] = plus(sum[at], a[u][i], b[u][j], j % 4);
            }
    }
}
#endif

// Adds up share `start` of `apart` of the steps of k: every `apart`th, or UNROLL of them. Where the
// weights are tiles, which never change, the last one is tested for in the loop and all is written out:
// else Mali's and V3D's compilers spill.
void add_up(int matrix, int row, int column, int start, int apart) {
    for (int i = 0; i < TM * TN; ++i) sum[i] = vec4(0.0);
#if UNROLL > 1
    int groups = k / 4 / UNROLL;
    for (int group = start; group < groups; group += apart)
        add_several(matrix, row, column, group * UNROLL);
    start += groups * UNROLL;
#endif
#if X_IN_C || WEIGHT_IN_R4 || WEIGHT_IN_C
    int step = start;
    for (; step < k / 4; step += apart) add(matrix, row, column, step, false);
    if (k % 4 > 0 && step == k / 4) add(matrix, row, column, step, true);
#else
    int stride = x_row >> 2, columns = (n + 3) / 4;
    int first = (matrix * m + row) * stride + X_BEGIN, last = m - 1 - row;
    int tiles = matrix * (weight_matrix / 4);
    int steps = (k + 3) / 4;
    for (int step = start; step < steps; step += apart) {
        vec4 a[TM];
        for (int i = 0; i < TM; ++i) a[i] = x_at(first + min(i, last) * stride + step);
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
