#version 310 es
// Maximum or average over a window, channels last: one pixel of four channels an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
#include "pool2d/windows.glsl"
layout(local_size_x = WG_X) in;
#include "common/x.glsl"
#define X(i) x_at(i)
layout(std430, binding = 1) buffer Out { OUT_FOUR result[]; };
uniform int n, c, h, w, oh, ow;
uniform int x_first, x_pixel, out_first, out_pixel;  // floats, multiples of 4

vec4 pool(int image, int y, int column, int quad) {
    quad += x_first / 4;
    int top = WINDOW_TOP(y), height = WINDOW_HEIGHT(y);
    int left = WINDOW_LEFT(column), width = WINDOW_WIDTH(column);
    vec4 value = vec4(NOTHING);
    for (int ky = 0; ky < height; ++ky) {
        int iy = top + ky * DILATION_H;
        if (iy < 0 || iy >= h) continue;
        int row = (image * h + iy) * w;
        for (int kx = 0; kx < width; ++kx) {
            int ix = left + kx * DILATION_W;
            if (ix >= 0 && ix < w) value = joined(value, X((row + ix) * (x_pixel / 4) + quad));
        }
    }
#if MODE == 1
    value /= places(top, left, height, width, h, w);
#endif
    return value;
}

void main() {
    int quads = (c + 3) / 4;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * oh * ow * quads; i += stride) {
        int pixel = i / quads;
        int row = pixel / ow, quad = i - pixel * quads;
        result[pixel * (out_pixel / 4) + out_first / 4 + quad] =
            STORED(pool(row / oh, row % oh, pixel - row * ow, quad));
    }
}
