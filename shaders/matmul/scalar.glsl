// The epilogue and the store of matmul kernels that compute single floats.
layout(std430, binding = 2) buffer Out { float result[]; };
#include <epilogue>

// Stores a sum at `index` of the result. column: its column.
void finish(float sum, int column, int index) {
    result[index] = epilogue(sum, index, column);
}
