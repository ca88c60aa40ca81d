#version 300 es
// Channels in groups of four to planar images: four elements a vertex.
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform int c, h, w, out_row;

float element(int image, int i) {
    int plane = h * w;
    int channel = i / plane;
    if (channel >= c) return 0.0;
    int group = image * ((c + 3) / 4) + channel / 4;
    return texel(x, (group * plane + i - channel * plane) * 4 + channel % 4).x;
}
#include "common/capture_elements.glsl"
