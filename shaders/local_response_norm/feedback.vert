#version 300 es
// Local response normalisation by transform feedback, row major: four neighbouring elements of the
// result a vertex, one by one.
#include "local_response_norm/power.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform int c, inner;
uniform int x_row, out_row;

float normalise(int image, int element) {
    int channel = element / inner;
    if (channel >= c) return 0.0;
    int place = image * x_row + element;
    float squares = 0.0;
    for (int offset = -BEFORE; offset <= BEHIND; ++offset) {
        if (channel + offset < 0 || channel + offset >= c) continue;
        float neighbour = texel(x, place + offset * inner).x;
        squares += neighbour * neighbour;
    }
    return normed(texel(x, place).x, squares);
}

vec4 vector(int i) {
    int image = i * 4 / out_row;
    int element = i * 4 - image * out_row;
    return vec4(normalise(image, element), normalise(image, element + 1),
                  normalise(image, element + 2), normalise(image, element + 3));
}
#include "common/capture.glsl"
