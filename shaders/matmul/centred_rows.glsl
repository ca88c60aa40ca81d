// The mean and the deviation of each of the rows of x that a workgroup multiplies, for products of
// rows that are normalised. ROW_LANES of its ROW_INVOCATIONS walk along each of the CENTRED_ROWS, four
// loads at a time, of which the mean is taken away before they are joined to those before (Chan, Golub
// and LeVeque 1979). SET_STATE and STATE write and read shared memory that is free until then, which
// has as many vec3 as lanes walk along rows.
#include "common/nan.glsl"
#define ROW_LOADS 4
uniform float eps;
shared vec2 row_norms[CENTRED_ROWS];  // the mean; what numbers less the mean are multiplied by

// How many numbers, their mean, the sum of their squared distances from it.
vec3 join_rows(vec3 a, vec3 b) {
    float count = a.x + b.x;
    if (count == 0.0) return a;
    // The square of a mean may be infinite, and 0 times it NaN: it is not computed.
    float share = b.x / count, delta = b.y - a.y;
    return vec3(count, a.y + delta * share, a.z + b.z + delta * (a.x * share) * delta);
}

// The same of four loads from vec4 `at` on, ROW_LANES apart, of a row with `left` numbers from there on.
vec3 four_loads(int at, int left) {
    vec4 loaded[ROW_LOADS];
    float mean = 0.0, squares = 0.0;
    int count = 0;
    for (int i = 0; i < ROW_LOADS; ++i) {
        int own = clamp(left - 4 * ROW_LANES * i, 0, 4);
        // The padding of a row is undefined, and nothing lies behind the last row.
        loaded[i] = first_of(x_at(own > 0 ? at + ROW_LANES * i : at), own);
        mean += dot(loaded[i], vec4(1.0));
        count += own;
    }
    mean /= float(max(count, 1));
    for (int i = 0; i < ROW_LOADS; ++i) {
        vec4 delta = first_of(loaded[i] - mean, clamp(left - 4 * ROW_LANES * i, 0, 4));
        squares += dot(delta, delta);
    }
    return vec3(float(count), mean, squares);
}

// The same of what the lanes of a row have found, of which the first has some numbers.
vec3 combine_lanes(int first) {
    float base = STATE(first).y, count = 0.0, distance = 0.0, squares = 0.0;
    for (int i = 0; i < ROW_LANES; ++i) {
        vec3 one = STATE(first + i);
        count += one.x;
        distance += one.x * (one.y - base);
    }
    float mean = base + distance / count;
    for (int i = 0; i < ROW_LANES; ++i) {
        vec3 one = STATE(first + i);
        squares += one.z + one.x * (one.y - mean) * (one.y - mean);
    }
    return vec3(count, mean, squares);
}

// Fills `row_norms` for the rows from `first` on, of which `x_begin` is where the first of all begins,
// in vec4. invocation: the number of this one.
void find_row_norms(int invocation, int first, int x_begin) {
    int of_row = invocation % ROW_LANES;
    for (int row = invocation / ROW_LANES; row < CENTRED_ROWS; row += ROW_INVOCATIONS / ROW_LANES) {
        int begin = x_begin + min(first + row, m - 1) * (x_row / 4);
        vec3 found = vec3(0.0);
        for (int at = of_row; 4 * at < k; at += ROW_LANES * ROW_LOADS)
            found = join_rows(found, four_loads(begin + at, k - 4 * at));
        SET_STATE(row * ROW_LANES + of_row, found);
    }
    wait();
    for (int row = invocation; row < CENTRED_ROWS; row += ROW_INVOCATIONS) {
        vec3 whole = combine_lanes(row * ROW_LANES);
        float variance = whole.z / float(k) + eps;
        // The roots of what is not finite are the driver's own.
        float scale = is_nan(variance) ? variance : is_finite(variance) ? 1.0 / sqrt(variance) : 0.0;
        row_norms[row] = vec2(whole.y, scale);
    }
    wait();
}
