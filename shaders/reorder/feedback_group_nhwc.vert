#version 300 es
// Channels-last images to channels in groups of four, by transform feedback: a texel at a time.
#include "common/first_of.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform int c, h, w;

vec4 vector(int i) {
    int quads = (c + 3) / 4;
    int plane = i / (h * w);
    int pixel = i - plane * h * w;
    int image = plane / quads;
    int quad = plane - image * quads;
    // Lanes past the last channel may hold anything, and become 0: they meet zero weights.
    return first_of(texel(x, (image * h * w + pixel) * quads + quad), c - quad * 4);
}
#include "common/capture.glsl"
