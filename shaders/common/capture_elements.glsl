// For dense results that are computed number by number: `element(image, i)` is the i-th of an image,
// which has out_row. A vec4 may begin in one image and end in the next; of the last one, and of one
// alone, there is padding behind the end.
uniform int out_rows;

void proceed(inout int image, inout int i) {
    ++i;
    if (i == out_row && image < out_rows - 1) {
        i = 0;
        ++image;
    }
}

vec4 vector(int quad) {
    int image = quad * 4 / out_row;
    int i = quad * 4 - image * out_row;
    vec4 found = vec4(0.0);
    found.x = element(image, i);
    proceed(image, i);
    found.y = element(image, i);
    proceed(image, i);
    found.z = element(image, i);
    proceed(image, i);
    found.w = element(image, i);
    return found;
}
#include "common/capture.glsl"
