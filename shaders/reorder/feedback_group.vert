#version 300 es
// Planar images to channels in groups of four: one pixel of four channels a vertex.
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform int c, h, w;
uniform int x_row;

vec4 vector(int i) {
    int plane = h * w;
    int pixel = i % plane;
    int groups = (c + 3) / 4;
    int image = i / plane / groups;
    int channel = (i / plane - image * groups) * 4;
    int start = image * x_row + channel * plane + pixel;
    int rest = c - channel;
    return vec4(texel(x, start).x, rest > 1 ? texel(x, start + plane).x : 0.0,
                  rest > 2 ? texel(x, start + 2 * plane).x : 0.0,
                  rest > 3 ? texel(x, start + 3 * plane).x : 0.0);
}
#include "common/capture.glsl"
