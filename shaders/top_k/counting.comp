#version 310 es
// Each number of a row goes to the place that the count of the numbers before it says.
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
        int row = number / n, place = number - row * n, image = row / sample_rows;
        int from = image * x_row + (row - image * sample_rows) * n;
        int key = key_of(x[from + place]), before = 0;
        for (int i = 0; i < n; ++i) {
            int other = key_of(x[from + i]);
            before += other > key || (other == key && i < place) ? 1 : 0;
        }
        if (before < k) result[row * k + before] = place;
    }
}
