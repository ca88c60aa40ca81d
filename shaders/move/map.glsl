// The map from a place of the result to a place of the operand: RANK nested loops, the innermost last. EDGE is
// what the result has for places outside of the operand: 0 there are none; 1 a constant; 2 the nearest edge;
// 3 the mirrored operand; 4 the operand repeated. Counts are of words, or of four words with WIDTH 4.
#ifndef RANK
#define RANK 2
#endif
#ifndef EDGE
#define EDGE 0
#endif
uniform int pitch[RANK];   // places of all inner loops together
uniform int reads[RANK];   // strides in the operand
uniform int writes[RANK];  // strides in the result
uniform int base, target_base;
#if EDGE
uniform int first[RANK], extent[RANK];  // where a loop begins in its dimension; the dimension's size
#endif

// The coordinate in the operand for `c`, along a dimension of `size`; it stays outside where EDGE is 1.
int coordinate(int c, int size) {
#if EDGE > 2
    if (c >= 0 && c < size) return c;  // most are: divisions for the others only
#endif
#if EDGE == 2
    return clamp(c, 0, size - 1);
#elif EDGE == 3
    int period = max(2 * size - 2, 1);
    int turn = c - (c >= 0 ? c / period : -((period - 1 - c) / period)) * period;
    return min(turn, period - turn);
#elif EDGE == 4
    return c - (c >= 0 ? c / size : -((size - 1 - c) / size)) * size;
#else
    return c;
#endif
}

// Adds the offsets of index `i` of loop `d` in the operand and in the result. Returns whether it is inside of
// the operand.
bool add_index(int d, int i, inout int at, inout int target) {
    target += i * writes[d];
    bool inside = true;
#if EDGE
    i = coordinate(i + first[d], extent[d]);
    inside = i >= 0 && i < extent[d];
#endif
    at += i * reads[d];
    return inside;
}

// The offset in the operand for a place of the result, -1 where it is outside. target: the result's offset.
int source(int place, out int target) {
    int at = base;
    bool inside = true;
    target = target_base;
    for (int d = 0; d < RANK; ++d) {
        int i = d == RANK - 1 ? place : place / pitch[d];
        place -= i * pitch[d];
        inside = add_index(d, i, at, target) && inside;
    }
    return inside ? at : -1;
}
