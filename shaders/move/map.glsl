// From a place of the result to the operand's: RANK nested loops, the innermost last. EDGE says what
// is met outside of the operand: 0 nothing is; 1 a constant; 2 the nearest edge; 3 mirrored; 4 the
// other end. All counts are of words, or of four words where they move together (WIDTH 4).
#ifndef RANK
#define RANK 2
#endif
#ifndef EDGE
#define EDGE 0
#endif
uniform int pitch[RANK];   // places of all the loops inside
uniform int reads[RANK];   // from one place to the next one in the operand
uniform int writes[RANK];  // and in the result
uniform int base, target_base;
#if EDGE
uniform int first[RANK], extent[RANK];  // where a loop begins along its dimension; that one's size
#endif

// The coordinate that is met for `c`, of `size`; outside stays outside only where EDGE is 1.
int met(int c, int size) {
#if EDGE > 2
    if (c >= 0 && c < size) return c;  // most do: the others divide
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

// Adds where index `i` of loop `d` lies, in the operand and in the result. Whether it is in the operand.
bool add_index(int d, int i, inout int at, inout int target) {
    target += i * writes[d];
    bool inside = true;
#if EDGE
    i = met(i + first[d], extent[d]);
    inside = i >= 0 && i < extent[d];
#endif
    at += i * reads[d];
    return inside;
}

// Where in the operand the number of a place lies, -1 where it is outside; and where in the result.
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
