#version 300 es
// A matrix from one layout to another by transform feedback, both row major or Hybrid Morton Order
// of up to four levels: four places of the result at a time, each of which finds its row and
// column. Padding becomes 0.
#include "reorder/layouts.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;

// The row and the column of a place of the result: `place` transposed.
ivec2 element(int target) {
    const ivec4 base = ivec4(TARGET_BASE_0, TARGET_BASE_1, TARGET_BASE_2, TARGET_BASE_3);
    const ivec4 high = ivec4(TARGET_HIGH_0, TARGET_HIGH_1, TARGET_HIGH_2, 1);
    const ivec4 wide = ivec4(TARGET_WIDE_0, TARGET_WIDE_1, TARGET_WIDE_2, 1);
    ivec2 found = ivec2(0);
    int rows = out_rows, columns = out_columns;
    for (int level = 0; level < 4; ++level) {
        int h = high[level], w = wide[level];
        int chunk = target / (h * w), down = rows / h, across = columns / w;
        target -= chunk * h * w;
        found += base[level] == 0 ? ivec2(chunk / across * h, chunk % across * w)
                                  : ivec2(chunk % down * h, chunk / down * w);
        rows = h;
        columns = w;
    }
    return found;
}

float number(int target) {
    ivec2 at = element(min(target, out_rows * out_columns - 1));
    return at.x < n && at.y < c ? texel(x, source(at.x, at.y)).x : 0.0;
}

vec4 vector(int i) {
    return vec4(number(i * 4), number(i * 4 + 1), number(i * 4 + 2), number(i * 4 + 3));
}
#include "common/capture.glsl"
