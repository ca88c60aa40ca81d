// An element of the result: that of x, reduced with its updates in their order.
//     RANK, DEPTH: dimensions of x; dimensions that indices name, from dimension LOOKED on.
//     REDUCTION: 0 the last update, 1 sum, 2 product, 3 greatest, 4 least. FLOATS: of floats.
//     SORTED: a table lists the updates of each element; else all indices are searched.
// The including shader defines INDEX(i) and UPDATE(i), elements of these operands.
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
uniform int pitch[RANK];    // strides of the result
uniform int size[RANK];     // of x's dimensions
uniform int looks[RANK];    // strides of the indices; 0 where these are searched
uniform int strides[RANK];  // strides of the updates
uniform int within[RANK];   // the extent along each dimension that has updates
uniform int outer_count, inner_count;    // two loops over the index tuples
uniform int outer_look, inner_look, outer_update, inner_update;  // their strides
uniform int index_step;                  // from one index of a tuple to the next
uniform int starts;                      // of the table: offset of the updates' list

uniform int x_row, x_size, out_row;      // row pitches; x_size: of x, padding included

// The offset in x of an element of the result; clamped, as padding of the result may lie past x.
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
    int coordinates[RANK];
    int index_offset = 0, update_offset = 0;
    bool is_covered = true;
    for (int d = 0; d < RANK; ++d) {
        coordinates[d] = place / pitch[d];
        place -= coordinates[d] * pitch[d];
        index_offset += coordinates[d] * looks[d];
        update_offset += coordinates[d] * strides[d];
        is_covered = is_covered && coordinates[d] < within[d];
    }
    if (!is_covered) return value;
#if SORTED
    int row = 0;
    for (int k = 0; k < DEPTH; ++k) row = row * size[k] + coordinates[k];
    int last = INDEX(row + 1);
    for (int i = INDEX(row); i < last; ++i) {
        int tuple = INDEX(starts + i);
        int outer = tuple / inner_count;
        int offset = update_offset + outer * outer_update + (tuple - outer * inner_count) * inner_update;
        value = reduced(value, UPDATE(offset));
    }
#else
    for (int outer = 0; outer < outer_count; ++outer)
        for (int inner = 0; inner < inner_count; ++inner) {
            int first = index_offset + outer * outer_look + inner * inner_look;
            bool matches = true;
            for (int k = 0; k < DEPTH; ++k) {
                int target = INDEX(first + k * index_step), extent = size[LOOKED + k];
                target = clamp(target < 0 ? target + extent : target, 0, extent - 1);
                matches = matches && target == coordinates[LOOKED + k];
            }
            int offset = update_offset + outer * outer_update + inner * inner_update;
            if (matches) value = reduced(value, UPDATE(offset));
        }
#endif
    return value;
}
