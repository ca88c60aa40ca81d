#version 310 es
// Direct convolution of channels-last images, one result an invocation: a dot product of four
// channels at a time (Rovder 2019, section 5.1).
#ifndef WG_X
#define WG_X 4
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef WG_Z
#define WG_Z 1
#endif
#include "common/launch.glsl"
#include "common/window.glsl"
#ifndef GROUPS
#define GROUPS 1
#endif
#include "common/first_of.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
#include <epilogue>
uniform int n, c, h, w, o, oh, ow;

void convolve(int image, int y, int column, int output_channel) {
    int quads = (c + 3) / 4;
    float sum = 0.0;
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        int iy = y * STRIDE_H - PADDING_TOP + ky * DILATION_H;
        if (iy < 0 || iy >= h) continue;
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            int ix = column * STRIDE_W - PADDING_LEFT + kx * DILATION_W;
            if (ix < 0 || ix >= w) continue;
            int at = ((image * h + iy) * w + ix) * quads;
            int tap = ((output_channel * KERNEL_H + ky) * KERNEL_W + kx) * quads;
            for (int q = 0; q < c / 4; ++q) sum += dot(x[at + q], weight[tap + q]);
            if (quads > c / 4)  // the padding of channels may hold anything
                sum += dot(first_of(x[at + c / 4], c - c / 4 * 4), weight[tap + c / 4]);
        }
    }
    int place = ((image * oh + y) * ow + column) * ((o + 3) / 4 * 4) + output_channel;
    result[place] = epilogue(sum, place, output_channel);
}

void main() {
    int output_channel = int(INVOCATION_ID.x);
    int column = int(INVOCATION_ID.y);
    if (output_channel >= o || column >= ow) return;
    int stride = int(WORKGROUP_COUNT.z) * WG_Z;
    for (int z = int(INVOCATION_ID.z); z < n * oh; z += stride)
        convolve(z / oh, z % oh, column, output_channel);
}
