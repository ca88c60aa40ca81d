// What the matmul kernels that compute four columns at a time do to four sums before storing them.
#include "common/fours.glsl"
uniform int out_first;  // numbers, a multiple of 4: where the result begins in its memory
layout(std430, binding = 2) buffer Out { OUT_FOUR result[]; };
#include <epilogue>

// Stores four sums at `place`; they are the `quad`th of the columns.
void finish(vec4 sum, int quad, int place) {
    result[place] = STORED(epilogue(sum, place, quad));
}
