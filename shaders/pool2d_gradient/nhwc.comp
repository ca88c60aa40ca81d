#version 310 es
// A pool's gradient, channels last: one pixel of four channels an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef HAS_X
#define HAS_X 1
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer Dy { vec4 dy[]; };
#if HAS_X
layout(std430, binding = 1) buffer X { vec4 x[]; };
layout(std430, binding = 2) buffer Y { vec4 y[]; };
#endif
layout(std430, binding = 3) buffer Out { vec4 result[]; };
uniform int n, c;
int quads = 1, quad = 0;  // quads of a pixel, and the index of the current one
#define NUMBER vec4
#define DY(i) dy[(i) * quads + quad]
#define X(i) x[(i) * quads + quad]
#define Y(i) y[(i) * quads + quad]
#include "pool2d_gradient/gather.glsl"
#include <epilogue>

void main() {
    quads = (c + 3) / 4;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * h * w * quads; i += stride) {
        int pixel = i / quads;
        quad = i - pixel * quads;
        int row = pixel / w;
        int image = row / h;
        int windows = image * oh * ow;
        vec4 value = gathered(row - image * h, pixel - row * w, windows, image * h * w, windows);
        result[i] = epilogue(value, i, quad);
    }
}
