#version 300 es
// Local response normalisation by transform feedback, row major: four neighbouring elements of the
// result a vertex, one by one.
#include "local_response_norm/power.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform int c, inner, out_row;
uniform int x_row;

float element(int image, int i) {
    int channel = i / inner;
    if (channel >= c) return 0.0;
    int place = image * x_row + i;
    float squares = 0.0;
    for (int offset = -BEFORE; offset <= BEHIND; ++offset) {
        if (channel + offset < 0 || channel + offset >= c) continue;
        float neighbour = texel(x, place + offset * inner).x;
        squares += neighbour * neighbour;
    }
    return normed(texel(x, place).x, squares);
}
#include "common/capture_elements.glsl"
