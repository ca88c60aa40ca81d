// The layouts of a matrix before and after, Hybrid Morton Order of up to four levels (the recursion of
// Rovder 2017, section 8.2, whose base case is 0).
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

// Where an element of x lies.
int source(int row, int column) {
    return place(row, column, x_rows, x_columns,
        ivec4(SOURCE_BASE_0, SOURCE_BASE_1, SOURCE_BASE_2, SOURCE_BASE_3),
        ivec4(SOURCE_HIGH_0, SOURCE_HIGH_1, SOURCE_HIGH_2, 1),
        ivec4(SOURCE_WIDE_0, SOURCE_WIDE_1, SOURCE_WIDE_2, 1));
}
