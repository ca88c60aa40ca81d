// What stands at a place of COUNT operands behind one another. The host writes how each is fetched
// from. All counts are of words, or of four words where they lie together (WIDTH 4).
// Before this file: the operands, and FETCHED(x, i), what the operand x has at i.
uniform int outer_pitch, middle_pitch;                 // the loops around, in the result
uniform int outer_reads[COUNT], middle_reads[COUNT];   // and in each operand
uniform int starts[COUNT], ends[COUNT], lasts[COUNT];  // of a run of each; the operand's last place
#ifdef PADDED
uniform int columns, padding[COUNT];  // numbers of a row, and what is behind one in each operand
#define WITHIN(i) (place - starts[i] + (place - starts[i]) / columns * padding[i])
#else
#define WITHIN(i) (place - starts[i])
#endif
#define FETCH(x, i) \
    if (place < ends[i]) \
        return FETCHED(x, min(outer * outer_reads[i] + middle * middle_reads[i] + WITHIN(i), \
                            lasts[i]));

NUMBERS fetch(int place) {
    int outer = place / outer_pitch;
    place -= outer * outer_pitch;
    int middle = place / middle_pitch;
    place -= middle * middle_pitch;
#include <fetches>
    return NUMBERS(0);  // padding
}

