// For dense results that are computed number by number: `element(image, i)` is the i-th of an image,
// which has out_row. A vec4 may begin in one image and end in the next; of the last one, and of one
// alone, there is padding behind the end.
uniform int out_rows;
vec4 vector(int quad);
#include "common/capture.glsl"

vec4 vector(int quad) {
    int image = quad * 4 / out_row;
    int i = quad * 4 - image * out_row;
    int end = image < out_rows - 1 ? out_row : out_row + 4;
    vec4 found = vec4(0.0);
    // 4: a loop of a known length is unrolled, and registers of boards run out.
    int lanes = min(out_size, 4);
    for (int lane = 0; lane < lanes; ++lane) {
        found[lane] = element(image, i);
        ++i;
        if (i == end) {
            i = 0;
            ++image;
            end = image < out_rows - 1 ? out_row : out_row + 4;
        }
    }
    return found;
}
