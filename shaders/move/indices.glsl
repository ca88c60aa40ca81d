// Indices of the loops of move/map.glsl, for an invocation that moves several places: advancing the indices saves
// the divisions that each place would need.
uniform int counts[RANK];  // of each loop

void find_indices(int place, out int index[RANK]) {
    for (int d = 0; d < RANK; ++d) {
        index[d] = d == RANK - 1 ? place : place / pitch[d];
        place -= index[d] * pitch[d];
    }
}

// Adds the indices `stride`, with a carry from each loop to the one around it.
void advance(inout int index[RANK], int stride[RANK]) {
    int carry = 0;
    for (int d = RANK - 1; d > 0; --d) {
        index[d] += stride[d] + carry;
        carry = index[d] >= counts[d] ? 1 : 0;
        index[d] -= carry * counts[d];
    }
    index[0] += stride[0] + carry;
}

// As `source` of move/map.glsl.
int source(int index[RANK], out int target) {
    int at = base;
    bool inside = true;
    target = target_base;
    for (int d = 0; d < RANK; ++d) inside = add_index(d, index[d], at, target) && inside;
    return inside ? at : -1;
}
