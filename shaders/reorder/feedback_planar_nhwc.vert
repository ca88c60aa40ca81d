#version 300 es
// Channels-last images to planar ones, by transform feedback: four elements at a time.
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform int c, h, w, out_row;

float element(int image, int i) {
    int channel = i / (h * w);
    int pixel = i - channel * (h * w);
    if (channel >= c) return 0.0;
    return texel(x, (image * h * w + pixel) * ((c + 3) / 4 * 4) + channel).x;
}
#include "common/capture_elements.glsl"
