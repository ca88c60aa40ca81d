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
    vec4 value = vec4(IDENTITY);
    for (int ky = 0; ky < height; ++ky) {
        int iy = top + ky * DILATION_H;
        int row = (image * h + clamp(iy, 0, h - 1)) * w;
        for (int kx = 0; kx < width; ++kx) {
            int ix = left + kx * DILATION_W;
            // Unconditional: a load that depends on a condition is waited for before the next is issued.
            vec4 tap = X((row + clamp(ix, 0, w - 1)) * (x_pixel / 4) + quad);
            bool inside = iy >= 0 && iy < h && ix >= 0 && ix < w;
            value = inside ? joined(value, tap) : value;
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
