#version 310 es
// A matrix from one layout to another, both row major or Hybrid Morton Order of up to four levels:
// one place of the result an invocation. Padding becomes 0.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
#include "common/launch.glsl"
#include "reorder/layouts.glsl"

void main() {
    int column = int(INVOCATION_ID.x);
    int row = int(INVOCATION_ID.y);
    if (row >= out_rows || column >= out_columns) return;
    int target = place(row, column, out_rows, out_columns,
        ivec4(TARGET_BASE_0, TARGET_BASE_1, TARGET_BASE_2, TARGET_BASE_3),
        ivec4(TARGET_HIGH_0, TARGET_HIGH_1, TARGET_HIGH_2, 1),
        ivec4(TARGET_WIDE_0, TARGET_WIDE_1, TARGET_WIDE_2, 1));
    result[target] = row < n && column < c ? x[source(row, column)] : 0.0;
}
