#version 310 es
// A matrix from one layout to another, both row major or Hybrid Morton Order of up to four levels:
// one place of the result an invocation (the recursion of Rovder 2017, section 8.2, whose base
// case is 0). Padding becomes 0.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 8
#endif
// BASE: 0 row by row, 1 column by column. HIGH, WIDE: a chunk's size, 1 below the last level.
#ifndef SOURCE_BASE_0
#define SOURCE_BASE_0 0
#define SOURCE_BASE_1 0
#define SOURCE_BASE_2 0
#define SOURCE_BASE_3 0
#define SOURCE_HIGH_0 1
#define SOURCE_HIGH_1 1
#define SOURCE_HIGH_2 1
#define SOURCE_WIDE_0 1
#define SOURCE_WIDE_1 1
#define SOURCE_WIDE_2 1
#define TARGET_BASE_0 1
#define TARGET_BASE_1 1
#define TARGET_BASE_2 0
#define TARGET_BASE_3 0
#define TARGET_HIGH_0 4
#define TARGET_HIGH_1 1
#define TARGET_HIGH_2 1
#define TARGET_WIDE_0 2
#define TARGET_WIDE_1 1
#define TARGET_WIDE_2 1
#endif
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int n, c;
uniform int x_rows, x_columns, out_rows, out_columns;  // padded

int place(int row, int column, int rows, int columns, ivec4 base, ivec4 high, ivec4 wide) {
    int found = 0;
    for (int level = 0; level < 4; ++level) {
        int h = high[level], w = wide[level];
        int down = row / h, across = column / w;
        int chunk = base[level] == 0 ? down * (columns / w) + across : across * (rows / h) + down;
        found += chunk * h * w;
        row -= down * h;
        column -= across * w;
        rows = h;
        columns = w;
    }
    return found;
}

void main() {
    int column = int(gl_GlobalInvocationID.x);
    int row = int(gl_GlobalInvocationID.y);
    if (row >= out_rows || column >= out_columns) return;
    int target = place(row, column, out_rows, out_columns,
        ivec4(TARGET_BASE_0, TARGET_BASE_1, TARGET_BASE_2, TARGET_BASE_3),
        ivec4(TARGET_HIGH_0, TARGET_HIGH_1, TARGET_HIGH_2, 1),
        ivec4(TARGET_WIDE_0, TARGET_WIDE_1, TARGET_WIDE_2, 1));
    float value = 0.0;
    if (row < n && column < c) {
        int source = place(row, column, x_rows, x_columns,
            ivec4(SOURCE_BASE_0, SOURCE_BASE_1, SOURCE_BASE_2, SOURCE_BASE_3),
            ivec4(SOURCE_HIGH_0, SOURCE_HIGH_1, SOURCE_HIGH_2, 1),
            ivec4(SOURCE_WIDE_0, SOURCE_WIDE_1, SOURCE_WIDE_2, 1));
        value = x[source];
    }
    result[target] = value;
}
