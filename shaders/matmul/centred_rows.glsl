// The mean and the deviation of each row of x that a workgroup multiplies, for products of normalised
// rows. ROW_LANES of its ROW_INVOCATIONS read each of the CENTRED_ROWS, four loads at a time, whose own mean
// is subtracted before they are merged with the former ones (Chan, Golub and LeVeque 1979). A state is a
// vec3: the count of numbers, their mean, and the sum of their squared distances from it. SET_STATE and
// STATE write and read the states of all lanes in shared memory that is not in use yet.
#include "common/nan.glsl"
#define ROW_LOADS 4
uniform float eps;
shared vec2 row_norms[CENTRED_ROWS];  // the mean, and the factor of numbers less the mean

// Merges two states.
vec3 join_rows(vec3 a, vec3 b) {
    float count = a.x + b.x;
    if (count == 0.0) return a;
    // The square of a mean may be infinite, and 0 times it NaN: it is not computed.
    float share = b.x / count, delta = b.y - a.y;
    return vec3(count, a.y + delta * share, a.z + b.z + delta * (a.x * share) * delta);
}

// The state of four loads from vec4 `first` on, ROW_LANES apart, of a row with `left` numbers from there on.
vec3 four_loads(int first, int left) {
    vec4 loaded[ROW_LOADS];
    float mean = 0.0, squares = 0.0;
    int count = 0;
    for (int i = 0; i < ROW_LOADS; ++i) {
        int numbers = clamp(left - 4 * ROW_LANES * i, 0, 4);
        // The padding of a row is undefined, and the memory ends after the last row.
        loaded[i] = first_of(x_at(numbers > 0 ? first + ROW_LANES * i : first), numbers);
        mean += dot(loaded[i], vec4(1.0));
        count += numbers;
    }
    mean /= float(max(count, 1));
    for (int i = 0; i < ROW_LOADS; ++i) {
        vec4 delta = first_of(loaded[i] - mean, clamp(left - 4 * ROW_LANES * i, 0, 4));
        squares += dot(delta, delta);
    }
    return vec3(float(count), mean, squares);
}

// Merges the states of the lanes of a row, of which the first has some numbers.
vec3 combine_lanes(int first) {
    float base = STATE(first).y, count = 0.0, distance = 0.0, squares = 0.0;
    for (int i = 0; i < ROW_LANES; ++i) {
        vec3 state = STATE(first + i);
        count += state.x;
        distance += state.x * (state.y - base);
    }
    float mean = base + distance / count;
    for (int i = 0; i < ROW_LANES; ++i) {
        vec3 state = STATE(first + i);
        squares += state.z + state.x * (state.y - mean) * (state.y - mean);
    }
    return vec3(count, mean, squares);
}

// Fills `row_norms` for the rows from `first` on. x_begin: offset of the first row of x, in vec4.
// invocation: index of this invocation in the workgroup.
void find_row_norms(int invocation, int first, int x_begin) {
    int lane = invocation % ROW_LANES;
    for (int row = invocation / ROW_LANES; row < CENTRED_ROWS; row += ROW_INVOCATIONS / ROW_LANES) {
        int begin = x_begin + min(first + row, m - 1) * (x_row / 4);
        vec3 state = vec3(0.0);
        for (int quad = lane; 4 * quad < k; quad += ROW_LANES * ROW_LOADS)
            state = join_rows(state, four_loads(begin + quad, k - 4 * quad));
        SET_STATE(row * ROW_LANES + lane, state);
    }
    workgroup_barrier();
    for (int row = invocation; row < CENTRED_ROWS; row += ROW_INVOCATIONS) {
        vec3 total = combine_lanes(row * ROW_LANES);
        float variance = total.z / float(k) + eps;
        // Drivers differ in the root of what is not finite.
        float scale = is_nan(variance) ? variance : is_finite(variance) ? 1.0 / sqrt(variance) : 0.0;
        row_norms[row] = vec2(total.y, scale);
    }
    workgroup_barrier();
}
