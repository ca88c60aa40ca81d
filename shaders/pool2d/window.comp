#version 310 es
// Maximum or average over a window, planar images: one result an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef MODE
#define MODE 0
#define KERNEL_H 2
#define KERNEL_W 2
#define STRIDE_H 2
#define STRIDE_W 2
#define PADDING_TOP 0
#define PADDING_LEFT 0
#define PADDING_BOTTOM 0
#define PADDING_RIGHT 0
#define DILATION_H 1
#define DILATION_W 1
#define COUNT_INCLUDE_PAD 1
#endif
#include "common/nan.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
uniform int n, c, h, w, oh, ow;
uniform int x_row, out_row;

float pool(int plane, int y, int column) {
    int top = y * STRIDE_H - PADDING_TOP;
    int left = column * STRIDE_W - PADDING_LEFT;
#if MODE == 0
    float value = uintBitsToFloat(0xff800000u);  // minus infinity
#else
    float value = 0.0;
#endif
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        int iy = top + ky * DILATION_H;
        if (iy < 0 || iy >= h) continue;
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            int ix = left + kx * DILATION_W;
            if (ix < 0 || ix >= w) continue;
            float tap = x[plane + iy * w + ix];
#if MODE == 0
            value = greater(value, tap);
#else
            value += tap;
#endif
        }
    }
#if MODE == 1
#if COUNT_INCLUDE_PAD
    int height = min(top + KERNEL_H, h + PADDING_BOTTOM) - top;
    int width = min(left + KERNEL_W, w + PADDING_RIGHT) - left;
#else
    int height = min(top + KERNEL_H, h) - max(top, 0);
    int width = min(left + KERNEL_W, w) - max(left, 0);
#endif
    value /= float(height * width);
#endif
    return value;
}

void main() {
    int inner = c * oh * ow;
    int stride = int(gl_NumWorkGroups.x) * WG_X;
    for (int i = int(gl_GlobalInvocationID.x); i < n * inner; i += stride) {
        int image = i / inner;
        int element = i - image * inner;
        int channel = element / (oh * ow);
        int pixel = element - channel * oh * ow;
        result[image * out_row + element] =
            pool(image * x_row + channel * h * w, pixel / ow, pixel % ow);
    }
}
