#version 310 es
// The patch matrix of channels-last images: four elements of a row an invocation.
// With MORTON the rows lie as R 2 4 R.
#ifndef WG_X
#define WG_X 16
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef MORTON
#define MORTON 0
#endif
#include "common/launch.glsl"
#include "common/window.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Out { vec4 result[]; };
uniform int c, h, w, oh, ow, m, k;

void gather(int row, int quad) {
    int image = row / (oh * ow);
    int pixel = row - image * oh * ow;
    int top = pixel / ow * STRIDE_H - PADDING_TOP;
    int left = pixel % ow * STRIDE_W - PADDING_LEFT;
    vec4 value = vec4(0.0);
    for (int i = 0; i < 4; ++i) {
        int tap = (quad * 4 + i) / c;
        int channel = quad * 4 + i - tap * c;
        int y = top + tap / KERNEL_W * DILATION_H, column = left + tap % KERNEL_W * DILATION_W;
        bool inside = y >= 0 && y < h && column >= 0 && column < w && quad * 4 + i < k;
        int at = ((image * h + y) * w + column) * ((c + 3) / 4 * 4) + channel;
        float met = x[inside ? at : 0];
        if (inside) value[i] = met;
    }
    int quads = (k + 3) / 4;
#if MORTON
    result[(row / 2 * quads + quad) * 2 + row % 2] = value;
#else
    result[row * quads + quad] = value;
#endif
}

void main() {
    int quad = int(INVOCATION_ID.x);
    if (quad >= (k + 3) / 4) return;
    int stride = int(WORKGROUP_COUNT.y) * WG_Y;
    for (int row = int(INVOCATION_ID.y); row < m; row += stride) gather(row, quad);
}
