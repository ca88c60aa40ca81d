#version 310 es
// The shifted sums of kn2row, channels last: one result an invocation, of a number for each tap.
#ifndef WG_X
#define WG_X 32
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#include "common/launch.glsl"
#include "common/window.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { float result[]; };
#include <epilogue>
uniform int o, h, w, oh, ow, pixels;
uniform int x_row;

void add_up(int pixel, int channel) {
    int image = pixel / (oh * ow);
    int rest = pixel - image * oh * ow;
    int top = rest / ow - PADDING_TOP, left = rest % ow - PADDING_LEFT;
    float sum = 0.0;
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        int y = top + ky * DILATION_H;
        if (y < 0 || y >= h) continue;
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            int column = left + kx * DILATION_W;
            if (column < 0 || column >= w) continue;
            sum += x[((image * h + y) * w + column) * x_row + (ky * KERNEL_W + kx) * o + channel];
        }
    }
    int place = pixel * ((o + 3) / 4 * 4) + channel;
    result[place] = epilogue(sum, place, channel);
}

void main() {
    int channel = int(INVOCATION_ID.x);
    if (channel >= o) return;
    int stride = int(WORKGROUP_COUNT.y) * WG_Y;
    for (int pixel = int(INVOCATION_ID.y); pixel < pixels; pixel += stride) add_up(pixel, channel);
}
