#version 310 es
// Each index of a row is stored at its rank: the count of the numbers that come before its number.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
#include "top_k/order.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { int x[]; };
layout(std430, binding = 1) buffer Out { int result[]; };
uniform int rows, sample_rows, n, k, x_row;

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int number = int(INVOCATION_ID.x); number < rows * n; number += stride) {
        int row = number / n, column = number - row * n, image = row / sample_rows;
        int row_begin = image * x_row + (row - image * sample_rows) * n;
        int key = key_of(x[row_begin + column]), rank = 0;
        for (int i = 0; i < n; ++i) {
            int other = key_of(x[row_begin + i]);
            rank += other > key || (other == key && i < column) ? 1 : 0;
        }
        if (rank < k) result[row * k + rank] = column;
    }
}
