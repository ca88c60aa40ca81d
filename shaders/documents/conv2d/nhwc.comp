#version 310 es
// Direct convolution of channels-last images, one result an invocation (Rovder 2019, section 5.1):
// channel by channel, or with DOT a dot product of four channels at a time. Ids run as the memory
// does, the outermost first, and a workgroup is a row by four columns by four channels.
#ifndef WG_X
#define WG_X 1
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef WG_Z
#define WG_Z 4
#endif
#ifndef DOT
#define DOT 0
#endif
#include "common/launch.glsl"
#include "common/window.glsl"
#ifndef GROUPS
#define GROUPS 1
#endif
#include "common/first_of.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
#if DOT
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
#else
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { float weight[]; };
#endif
layout(std430, binding = 2) buffer Out { float result[]; };
#include <epilogue>
uniform int n, c, h, w, o, oh, ow;

// The sum over the channels of a pixel and a tap, which begin at these quads.
float channels(int pixel, int tap) {
    float sum = 0.0;
#if DOT
    for (int q = 0; q < c / 4; ++q) sum += dot(x[pixel + q], weight[tap + q]);
    if (c % 4 != 0)  // the padding of channels may hold anything
        sum += dot(first_of(x[pixel + c / 4], c % 4), weight[tap + c / 4]);
#else
    for (int i = 0; i < c; ++i) sum += x[pixel * 4 + i] * weight[tap * 4 + i];
#endif
    return sum;
}

void convolve(int image, int y, int column, int output_channel) {
    int quads = (c + 3) / 4;
    float sum = 0.0;
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        int iy = y * STRIDE_H - PADDING_TOP + ky * DILATION_H;
        if (iy < 0 || iy >= h) continue;
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            int ix = column * STRIDE_W - PADDING_LEFT + kx * DILATION_W;
            if (ix < 0 || ix >= w) continue;
            int tap = (output_channel * KERNEL_H + ky) * KERNEL_W + kx;
            sum += channels(((image * h + iy) * w + ix) * quads, tap * quads);
        }
    }
    int place = ((image * oh + y) * ow + column) * ((o + 3) / 4 * 4) + output_channel;
    result[place] = epilogue(sum, place, output_channel);
}

void main() {
    int y = int(INVOCATION_ID.x);
    int column = int(INVOCATION_ID.y);
    if (y >= oh || column >= ow) return;
    int stride = int(WORKGROUP_COUNT.z) * WG_Z;
    for (int z = int(INVOCATION_ID.z); z < n * o; z += stride)
        convolve(z / o, y, column, z % o);
}
