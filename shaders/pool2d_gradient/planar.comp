#version 310 es
// A pool's gradient, planar images: one pixel of a channel an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef HAS_X
#define HAS_X 1
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer Dy { float dy[]; };
#if HAS_X
layout(std430, binding = 1) buffer X { float x[]; };
layout(std430, binding = 2) buffer Y { float y[]; };
#endif
layout(std430, binding = 3) buffer Out { float result[]; };
#define NUMBER float
#define DY(i) dy[i]
#define X(i) x[i]
#define Y(i) y[i]
#include "pool2d_gradient/gather.glsl"
#include <epilogue>
uniform int n, c;
uniform int dy_row, x_row, y_row, out_row;

void main() {
    int inner = c * h * w;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < n * inner; i += stride) {
        int image = i / inner;
        int element = i - image * inner;
        int channel = element / (h * w);
        int pixel = element - channel * h * w;
        int row = pixel / w;
        int window = channel * oh * ow;
        float value = gathered(row, pixel - row * w, image * dy_row + window,
                               image * x_row + channel * h * w, image * y_row + window);
        int at = image * out_row + element;
        result[at] = epilogue(value, at, channel);
    }
}
