#version 310 es
// Planar images to channels last: four channels of a pixel an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
uniform int n, c, h, w;
uniform int x_row;

void move(int image, int quad, int pixel) {
    int quads = (c + 3) / 4;
    int plane = h * w;
    int start = image * x_row + quad * 4 * plane + pixel;
    vec4 value = vec4(0.0);
    for (int i = 0; i < 4; ++i)
        if (quad * 4 + i < c) value[i] = x[start + i * plane];
    result[(image * plane + pixel) * quads + quad] = value;
}

void main() {
    int plane = h * w, quads = (c + 3) / 4;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * quads * plane; i += stride)
        move(i / (quads * plane), i / plane % quads, i % plane);
}
