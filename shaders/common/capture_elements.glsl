// For results that lie row major and are computed number by number: the four of a vec4 are those of
// `element(image, i)`, the i-th of a row of out_row. Past its last one there is padding.

vec4 vector(int quad) {
    int image = quad * 4 / out_row;
    int i = quad * 4 - image * out_row;
    return vec4(element(image, i), element(image, i + 1), element(image, i + 2),
                element(image, i + 3));
}
#include "common/capture.glsl"
