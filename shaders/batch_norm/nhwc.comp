#version 310 es
// Scales and shifts each channel, channels last: one pixel of four channels an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Scale { vec4 scale[]; };
layout(std430, binding = 2) buffer Shift { vec4 shift[]; };
layout(std430, binding = 3) buffer Out { vec4 result[]; };
#include <epilogue>
uniform int n, c, inner;

void main() {
    int quads = (c + 3) / 4;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * inner * quads; i += stride) {
        int quad = i % quads;
        result[i] = epilogue(scale[quad] * x[i] + shift[quad], i, quad);
    }
}
