#version 310 es
// Zeros around channels-last images: four channels of a pixel an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef PADDING_TOP
#define PADDING_TOP 1
#define PADDING_LEFT 1
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
uniform int n, c, h, w, oh, ow;

void main() {
    int quads = (c + 3) / 4;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * oh * ow * quads; i += stride) {
        int pixel = i / quads;
        int image = pixel / (oh * ow);
        int y = pixel / ow % oh - PADDING_TOP, column = pixel % ow - PADDING_LEFT;
        bool inside = y >= 0 && y < h && column >= 0 && column < w;
        vec4 met = x[inside ? ((image * h + y) * w + column) * quads + i % quads : 0];
        result[i] = inside ? met : vec4(0.0);
    }
}
