// What every matmul kernel that computes single floats does to a sum before storing it.
layout(std430, binding = 2) buffer Out { float result[]; };
#include <epilogue>

// Stores a sum at `place`. column: of the result.
void finish(float sum, int column, int place) {
    result[place] = epilogue(sum, place, column);
}
