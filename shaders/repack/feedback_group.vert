#version 300 es
// Planar images to channels in groups of four: one pixel of four channels a vertex.
#include "common/texel.glsl"
uniform highp sampler2D x;
uniform int c, h, w;
uniform int x_row;
out highp vec4 result;

void main() {
    int plane = h * w;
    int pixel = gl_VertexID % plane;
    int groups = (c + 3) / 4;
    int image = gl_VertexID / plane / groups;
    int channel = (gl_VertexID / plane - image * groups) * 4;
    int start = image * x_row + channel * plane + pixel;
    int rest = c - channel;
    result = vec4(texel(x, start).x, rest > 1 ? texel(x, start + plane).x : 0.0,
                  rest > 2 ? texel(x, start + 2 * plane).x : 0.0,
                  rest > 3 ? texel(x, start + 3 * plane).x : 0.0);
}
