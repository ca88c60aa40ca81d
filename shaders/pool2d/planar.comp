#version 310 es
// Maximum or average over a window, planar images: one result an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#include "common/launch.glsl"
#include "pool2d/windows.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int n, c, h, w, oh, ow;
uniform int x_row, out_row;

float pool(int plane, int y, int column) {
    int top = WINDOW_TOP(y), height = WINDOW_HEIGHT(y);
    int left = WINDOW_LEFT(column), width = WINDOW_WIDTH(column);
    float value = IDENTITY;
    for (int ky = 0; ky < height; ++ky) {
        int iy = top + ky * DILATION_H;
        int row = plane + clamp(iy, 0, h - 1) * w;
        for (int kx = 0; kx < width; ++kx) {
            int ix = left + kx * DILATION_W;
            // Unconditional: a load that depends on a condition is waited for before the next is issued.
            float tap = x[row + clamp(ix, 0, w - 1)];
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
    int inner = c * oh * ow;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * inner; i += stride) {
        int image = i / inner;
        int element = i - image * inner;
        int channel = element / (oh * ow);
        int pixel = element - channel * oh * ow;
        result[image * out_row + element] =
            pool(image * x_row + channel * h * w, pixel / ow, pixel % ow);
    }
}
