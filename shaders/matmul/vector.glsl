// What the matmul kernels that compute four columns at a time do to four sums before storing them.
uniform int out_first;  // floats, a multiple of 4: where the result begins in its memory
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#include <epilogue>

// Stores four sums at `place`; they are the `quad`th of the columns.
void finish(vec4 sum, int quad, int place) {
    result[place] = epilogue(sum, place, quad);
}
