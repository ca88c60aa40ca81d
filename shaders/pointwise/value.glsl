// The numbers of a result, four at a time: an expression of numbers of operands that broadcast.
// The host writes the operands, as buffers, samplers or attributes, the expression, and how the
// four of each operand are fetched and become the four that are `found`.
//     RANK: the dimensions of the result's memory, where indices along them are needed, else 0.
//     ZEROS: whether channels are in groups of four, those past the last being zeros.
#ifndef RANK
#define RANK 0
#endif
#ifndef ZEROS
#define ZEROS 0
#endif

#if RANK > 0
uniform int place[RANK];   // how far apart the result's numbers lie along each, 1 at last
uniform int extent[RANK];  // how many there are along each

struct Indices {
    int along[RANK];
};

// The indices of the number at a place of the result's memory.
Indices indices(int number) {
    Indices found;
    for (int i = 0; i < RANK - 1; ++i) {
        found.along[i] = number / place[i];
        number -= found.along[i] * place[i];
    }
    found.along[RANK - 1] = number;
    return found;
}

// Those of the number that follows.
Indices next(Indices found) {
    found.along[RANK - 1] += 1;
    for (int i = RANK - 1; i > 0; --i)
        if (found.along[i] == extent[i]) {
            found.along[i] = 0;
            found.along[i - 1] += 1;
        }
    return found;
}

// Where an operand has the number for these; what is asked for padding may lie past its end.
int where(Indices found, int stride[RANK], int first, int size) {
    int sum = first;
    for (int i = 0; i < RANK; ++i) sum += found.along[i] * stride[i];
    return min(sum, size - 1);
}
#endif
#if ZEROS
uniform int channels, pixels;
#endif
#include <operands>
#include <expression>

// The vec4 number `quad` of the result, one of those that a vertex captures: the `turn`-th.
RESULT value(int quad, int turn) {
#if RANK > 0
    Indices at = indices(4 * quad);
#endif
#include <fetches>
#if ZEROS
    int rest = channels - 4 * (quad / pixels % ((channels + 3) / 4));
    RESULT none = RESULT(0);
    found = RESULT(found.x, rest > 1 ? found.y : none.y, rest > 2 ? found.z : none.z,
                   rest > 3 ? found.w : none.w);
#endif
    return found;
}
