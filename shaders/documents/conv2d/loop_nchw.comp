#version 310 es
// Convolution of planar images by plain loops, one result an invocation: the baseline of Rovder
// 2019, section 4. Ids run as the memory does, the outermost first, as in the products of Rovder
// 2017; the workgroup, which the document leaves to OpenCL, lies along the first.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef WG_Y
#define WG_Y 1
#endif
#ifndef WG_Z
#define WG_Z 1
#endif
#include "common/launch.glsl"
#include "common/window.glsl"
#ifndef GROUPS
#define GROUPS 1
#endif
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Weight { float weight[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
#include <epilogue>
uniform int n, c, h, w, o, oh, ow;
uniform int x_row, out_row;

void convolve(int image, int output_channel, int y, int column) {
    float sum = 0.0;
    for (int channel = 0; channel < c; ++channel) {
        for (int ky = 0; ky < KERNEL_H; ++ky) {
            int iy = y * STRIDE_H - PADDING_TOP + ky * DILATION_H;
            if (iy < 0 || iy >= h) continue;
            int line = image * x_row + (channel * h + iy) * w;
            int tap = ((output_channel * c + channel) * KERNEL_H + ky) * KERNEL_W;
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                int ix = column * STRIDE_W - PADDING_LEFT + kx * DILATION_W;
                if (ix >= 0 && ix < w) sum += x[line + ix] * weight[tap + kx];
            }
        }
    }
    int place = image * out_row + (output_channel * oh + y) * ow + column;
    result[place] = epilogue(sum, place, output_channel);
}

void main() {
    int output_channel = int(INVOCATION_ID.x);
    int y = int(INVOCATION_ID.y);
    if (output_channel >= o || y >= oh) return;
    int stride = int(WORKGROUP_COUNT.z) * WG_Z;
    for (int z = int(INVOCATION_ID.z); z < n * ow; z += stride)
        convolve(z / ow, output_channel, y, z % ow);
}
