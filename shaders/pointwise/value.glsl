// The numbers of a result, four at a time: an expression of operands that broadcast. The host generates the
// operands, as buffers, samplers or attributes; the expression; and the lines that fetch four numbers of each
// operand and declare the result's four, `found`.
//     RANK: dimensions of the result's memory, where indices along them are needed, else 0.
//     ZEROS: whether channels are in groups of four, with zeros past the last one.
#ifndef RANK
#define RANK 0
#endif
#ifndef ZEROS
#define ZEROS 0
#endif

#if RANK > 0
uniform int place[RANK];   // strides of the result's memory, the last one 1
uniform int extent[RANK];  // sizes of its dimensions

struct Indices {
    int along[RANK];
};

// The indices of number `number` of the result's memory.
Indices indices(int number) {
    Indices result_indices;
    for (int i = 0; i < RANK - 1; ++i) {
        result_indices.along[i] = number / place[i];
        number -= result_indices.along[i] * place[i];
    }
    result_indices.along[RANK - 1] = number;
    return result_indices;
}

// The indices of the following number.
Indices next(Indices at) {
    at.along[RANK - 1] += 1;
    for (int i = RANK - 1; i > 0; --i)
        if (at.along[i] == extent[i]) {
            at.along[i] = 0;
            at.along[i - 1] += 1;
        }
    return at;
}

// The index of an operand's number for these indices; those of padding are clamped to the operand's end.
int where(Indices at, int stride[RANK], int first, int size) {
    int sum = first;
    for (int i = 0; i < RANK; ++i) sum += at.along[i] * stride[i];
    return min(sum, size - 1);
}
#endif
#if ZEROS
uniform int channels, pixels;
#endif
#include <operands>
#include <expression>

// Vec4 `quad` of the result. turn: its index among the vec4 that a vertex captures.
RESULT value(int quad, int turn) {
#if RANK > 0
    Indices at = indices(4 * quad);
#endif
#include <fetches>
#if ZEROS
    int left = channels - 4 * (quad / pixels % ((channels + 3) / 4));
    RESULT zero = RESULT(0);
    found = RESULT(found.x, left > 1 ? found.y : zero.y, left > 2 ? found.z : zero.z,
                   left > 3 ? found.w : zero.w);
#endif
    return found;
}
