// The number of a place of the result: x's own, and the updates that go there, in their order.
//     RANK, DEPTH: dimensions of x; those that indices name, from dimension LOOKED on.
//     REDUCTION: 0 the last update, 1 sum, 2 product, 3 greatest, 4 least. FLOATS: of floats.
//     SORTED: whether a table says which updates each place has; else all indices are walked.
// Who includes it defines INDEX(i) and UPDATE(i), the numbers of these operands.
#ifndef RANK
#define RANK 2
#endif
#ifndef DEPTH
#define DEPTH 1
#endif
#ifndef LOOKED
#define LOOKED 0
#endif
#ifndef REDUCTION
#define REDUCTION 0
#endif
#ifndef FLOATS
#define FLOATS 1
#endif
#ifndef SORTED
#define SORTED 0
#endif
#include "common/nan.glsl"
uniform int pitch[RANK];    // from one place to the next one in the result
uniform int size[RANK];     // of x's dimensions
uniform int looks[RANK];    // from one place to the next one in the indices: 0 where these are walked
uniform int strides[RANK];  // and in the updates
uniform int within[RANK];   // how many places along a dimension have updates at all
uniform int outer_count, inner_count;    // what is walked: two loops
uniform int outer_look, inner_look, outer_update, inner_update;
uniform int index_step;                  // from one index of a tuple to the next
uniform int starts;                      // the numbers of a table before the updates' own

uniform int x_row, x_size, out_row;      // from one row to the next; what x takes, padding included

// Where x has the number for a place of the result; what is asked for padding may lie past its end.
int place_in_x(int place) {
    return min(place + place / out_row * (x_row - out_row), x_size - 1);
}

float extreme(float a, float b) {
    if (is_nan(a)) return a;
    if (is_nan(b)) return b;
#if REDUCTION == 3
    return a < b ? b : a;
#else
    return b < a ? b : a;
#endif
}

int reduced(int a, int b) {
#if REDUCTION == 0
    return b;
#elif FLOATS && REDUCTION == 1
    return floatBitsToInt(intBitsToFloat(a) + intBitsToFloat(b));
#elif FLOATS && REDUCTION == 2
    return floatBitsToInt(intBitsToFloat(a) * intBitsToFloat(b));
#elif FLOATS
    return floatBitsToInt(extreme(intBitsToFloat(a), intBitsToFloat(b)));
#elif REDUCTION == 1
    return a + b;
#elif REDUCTION == 2
    return a * b;
#elif REDUCTION == 3
    return max(a, b);
#else
    return min(a, b);
#endif
}

int updated(int place, int value) {
    int c[RANK];
    int look = 0, update = 0;
    bool met = true;
    for (int d = 0; d < RANK; ++d) {
        c[d] = place / pitch[d];
        place -= c[d] * pitch[d];
        look += c[d] * looks[d];
        update += c[d] * strides[d];
        met = met && c[d] < within[d];
    }
    if (!met) return value;
#if SORTED
    int own = 0;
    for (int k = 0; k < DEPTH; ++k) own = own * size[k] + c[k];
    int last = INDEX(own + 1);
    for (int i = INDEX(own); i < last; ++i) {
        int number = INDEX(starts + i);
        int outer = number / inner_count;
        int at = update + outer * outer_update + (number - outer * inner_count) * inner_update;
        value = reduced(value, UPDATE(at));
    }
#else
    for (int outer = 0; outer < outer_count; ++outer)
        for (int inner = 0; inner < inner_count; ++inner) {
            int from = look + outer * outer_look + inner * inner_look;
            bool here = true;
            for (int k = 0; k < DEPTH; ++k) {
                int found = INDEX(from + k * index_step), places = size[LOOKED + k];
                found = clamp(found < 0 ? found + places : found, 0, places - 1);
                here = here && found == c[LOOKED + k];
            }
            int at = update + outer * outer_update + inner * inner_update;
            if (here) value = reduced(value, UPDATE(at));
        }
#endif
    return value;
}
