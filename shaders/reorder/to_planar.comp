#version 310 es
// Channels-last images to planar ones: four channels of a pixel an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int n, c, h, w;
uniform int out_row;

void move(int image, int quad, int pixel) {
    int quads = (c + 3) / 4;
    int plane = h * w;
    int start = image * out_row + quad * 4 * plane + pixel;
    vec4 value = x[(image * plane + pixel) * quads + quad];
    for (int i = 0; i < 4; ++i)
        if (quad * 4 + i < c) result[start + i * plane] = value[i];
}

void main() {
    int plane = h * w, quads = (c + 3) / 4;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * quads * plane; i += stride)
        move(i / (quads * plane), i / plane % quads, i % plane);
}
