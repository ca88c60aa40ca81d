// The places that one invocation moves, one after the other: as turns of the loops of move/map.glsl, which are
// added up where a place would have to be divided.
uniform int counts[RANK];  // turns of each loop

// Which turn of each loop a place is of.
void turns(int place, out int turn[RANK]) {
    for (int d = 0; d < RANK; ++d) {
        turn[d] = d == RANK - 1 ? place : place / pitch[d];
        place -= turn[d] * pitch[d];
    }
}

// The turns of the place `further` behind, both as turns.
void advance(inout int turn[RANK], int further[RANK]) {
    int carry = 0;
    for (int d = RANK - 1; d > 0; --d) {
        turn[d] += further[d] + carry;
        carry = turn[d] >= counts[d] ? 1 : 0;
        turn[d] -= carry * counts[d];
    }
    turn[0] += further[0] + carry;
}

// As `source` of move/map.glsl.
int source(int turn[RANK], out int target) {
    int at = base;
    bool inside = true;
    target = target_base;
    for (int d = 0; d < RANK; ++d) {
        int c = turn[d];
        target += c * writes[d];
#if EDGE
        c = met(c + first[d], extent[d]);
        inside = inside && c >= 0 && c < extent[d];
#endif
        at += c * reads[d];
    }
    return inside ? at : -1;
}
