#version 300 es
// A matrix from one layout to another by transform feedback, both row major or Hybrid Morton Order
// of up to four levels (Rovder 2017, section 8.2): four places of the result at a time, each of
// which finds its row and column, and those their place in x. Padding becomes 0.
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
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform int n, c;
uniform int x_rows, x_columns, out_rows, out_columns;  // padded

// The row and the column of a place of the result.
ivec2 element(int place) {
    const int base[4] = int[](TARGET_BASE_0, TARGET_BASE_1, TARGET_BASE_2, TARGET_BASE_3);
    const ivec4 high = ivec4(TARGET_HIGH_0, TARGET_HIGH_1, TARGET_HIGH_2, 1);
    const ivec4 wide = ivec4(TARGET_WIDE_0, TARGET_WIDE_1, TARGET_WIDE_2, 1);
    ivec2 found = ivec2(0);
    int rows = out_rows, columns = out_columns;
    for (int level = 0; level < 4; ++level) {
        int h = high[level], w = wide[level];
        int chunk = place / (h * w), down = rows / h, across = columns / w;
        place -= chunk * h * w;
        found += base[level] == 0 ? ivec2(chunk / across * h, chunk % across * w)
                                  : ivec2(chunk % down * h, chunk / down * w);
        rows = h;
        columns = w;
    }
    return found;
}

// Where the element of x lies.
int place(ivec2 element) {
    const int base[4] = int[](SOURCE_BASE_0, SOURCE_BASE_1, SOURCE_BASE_2, SOURCE_BASE_3);
    const ivec4 high = ivec4(SOURCE_HIGH_0, SOURCE_HIGH_1, SOURCE_HIGH_2, 1);
    const ivec4 wide = ivec4(SOURCE_WIDE_0, SOURCE_WIDE_1, SOURCE_WIDE_2, 1);
    int found = 0, rows = x_rows, columns = x_columns;
    for (int level = 0; level < 4; ++level) {
        int h = high[level], w = wide[level];
        ivec2 chunk = element / ivec2(h, w);
        found += (base[level] == 0 ? chunk.x * (columns / w) + chunk.y
                                   : chunk.y * (rows / h) + chunk.x) * h * w;
        element -= chunk * ivec2(h, w);
        rows = h;
        columns = w;
    }
    return found;
}

float number(int target) {
    ivec2 at = element(min(target, out_rows * out_columns - 1));
    return at.x < n && at.y < c ? texel(x, place(at)).x : 0.0;
}

vec4 vector(int i) {
    return vec4(number(i * 4), number(i * 4 + 1), number(i * 4 + 2), number(i * 4 + 3));
}
#include "common/capture.glsl"
