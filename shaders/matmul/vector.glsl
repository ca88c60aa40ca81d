// The epilogue and the store of matmul kernels that compute four columns at a time.
#include "common/fours.glsl"
uniform int out_first;  // offset of the result in its memory: numbers, a multiple of 4
layout(std430, binding = 2) buffer Out { OUT_FOUR result[]; };
#include <epilogue>

// Stores four sums at vec4 `index` of the result. quad: their columns.
void finish(vec4 sum, int quad, int index) {
    result[index] = STORED(epilogue(sum, index, quad));
}
