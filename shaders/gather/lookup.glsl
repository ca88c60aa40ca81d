// From a place of the result to the operand's that an index names: RANK nested loops, the innermost
// last, and DEPTH indices. All counts are of words, or of four where they move together (WIDTH 4).
// Who includes it defines INDEX(i), the number i of the indices.
#ifndef RANK
#define RANK 2
#endif
#ifndef DEPTH
#define DEPTH 1
#endif
uniform int pitch[RANK];   // places of all the loops inside
uniform int reads[RANK];   // from one place to the next one in the operand
uniform int writes[RANK];  // in the result
uniform int looks[RANK];   // and in the indices
uniform int sizes[DEPTH], along[DEPTH];  // of the dimensions that are looked up; how far apart
uniform int index_step;    // from one index of a tuple to the next

int source(int place, out int target) {
    int at = 0, look = 0;
    target = 0;
    for (int d = 0; d < RANK; ++d) {
        int c = d == RANK - 1 ? place : place / pitch[d];
        place -= c * pitch[d];
        at += c * reads[d];
        target += c * writes[d];
        look += c * looks[d];
    }
    for (int k = 0; k < DEPTH; ++k) {
        int found = INDEX(look + k * index_step);
        at += clamp(found < 0 ? found + sizes[k] : found, 0, sizes[k] - 1) * along[k];
    }
    return at;
}
