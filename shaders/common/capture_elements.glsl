// Dense results that are computed one number at a time: `element(image, i)` is number `i` of an image, which
// has `out_row` numbers. A vec4 may begin in one image and end in the next; the last one ends in padding.
uniform int out_rows;
vec4 vector(int quad);
#include "common/capture.glsl"

vec4 vector(int quad) {
    int image = quad * 4 / out_row;
    int i = quad * 4 - image * out_row;
    int end = image < out_rows - 1 ? out_row : out_row + 4;
    vec4 four = vec4(0.0);
    // 4, but not a constant: boards run out of registers where the loop is unrolled.
    int lanes = min(out_size, 4);
    for (int lane = 0; lane < lanes; ++lane) {
        four[lane] = element(image, i);
        ++i;
        if (i == end) {
            i = 0;
            ++image;
            end = image < out_rows - 1 ? out_row : out_row + 4;
        }
    }
    return four;
}
