#version 310 es
// Maximum or average over a window, channels last: PX neighbours of a row of four channels an
// invocation. What their windows meet of a row is read once for all of them, each column is joined
// once, and rows outside of the image are not read. Columns outside are read as the nearest one
// within, which a maximum has in its window anyway.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef PX
#define PX 2
#endif
#include "common/launch.glsl"
#include "pool2d/windows.glsl"
layout(local_size_x = WG_X) in;
#include "common/fours.glsl"
layout(std430, binding = 0) buffer X { X_FOUR x[]; };
layout(std430, binding = 1) buffer Out { OUT_FOUR result[]; };
uniform int n, c, h, w, oh, ow;
uniform int x_first, x_pixel, out_first, out_pixel;  // floats, multiples of 4
#define COLUMNS ((PX - 1) * STRIDE_W + KERNEL_W)
#define LEAST uintBitsToFloat(0xff7fffffu)  // the least number that is finite

#if MODE == 0
// The maximum over a window, NaN where it has one, column by column: where a number is not finite.
vec4 maximum(int start, int first, int last, int left) {
    vec4 value = vec4(IDENTITY);
    for (int row = first; row < last; ++row)
        for (int column = max(left, 0); column < min(left + KERNEL_W, w); ++column)
            value = greater(value, X_AT(start + (row * w + column) * (x_pixel / 4)));
    return value;
}
#endif

void pool(int quad, int y, int column) {
    int image = y / oh;  // rows are counted through all images
    int top = (y - image * oh) * STRIDE_H - PADDING_TOP;
    int left = column * STRIDE_W - PADDING_LEFT;
    int first = max(top, 0), last = min(top + KERNEL_H, h);
    int pixel = x_pixel / 4;
    int start = image * h * w * pixel + x_first / 4 + quad;
    vec4 met[COLUMNS];
#if MODE == 0
    for (int i = 0; i < COLUMNS; ++i) met[i] = vec4(LEAST);
    vec4 sum = vec4(0.0);  // of all, which is not finite where one of them is not
#else
    for (int i = 0; i < COLUMNS; ++i) met[i] = vec4(0.0);
#endif
    for (int row = first; row < last; ++row) {
        for (int i = 0; i < COLUMNS; ++i) {
            vec4 tap = X_AT(start + (row * w + clamp(left + i, 0, w - 1)) * pixel);
#if MODE == 0
            met[i] = max(met[i], tap);
            sum += tap;
#else
            met[i] += tap;
#endif
        }
    }
#if MODE == 0
    float whole = (sum.x + sum.y) + (sum.z + sum.w);
    bool sound = is_finite(whole);
#else
    for (int i = 0; i < COLUMNS; ++i)
        if (left + i < 0 || left + i >= w) met[i] = vec4(0.0);
#endif
    for (int p = 0; p < PX; ++p) {
        int from = left + p * STRIDE_W;
        vec4 value = met[p * STRIDE_W];
        for (int i = 1; i < KERNEL_W; ++i) {
#if MODE == 0
            value = max(value, met[p * STRIDE_W + i]);
#else
            value += met[p * STRIDE_W + i];
#endif
        }
        if (column + p < ow) {
#if MODE == 0
            if (!sound) value = maximum(start, first, last, from);
#else
            value /= places(top, from, KERNEL_H, KERNEL_W, h, w);
#endif
            result[(y * ow + column + p) * (out_pixel / 4) + out_first / 4 + quad] = STORED(value);
        }
    }
}

void main() {
    int quads = (c + 3) / 4;
    int group = int(INVOCATION_ID.x) / quads;
    int quad = int(INVOCATION_ID.x) - group * quads;
    if (group * PX >= ow) return;
    for (int y = int(WORKGROUP_ID.y); y < n * oh; y += int(WORKGROUP_COUNT.y))
        pool(quad, y, group * PX);
}
