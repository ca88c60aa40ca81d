#version 310 es
// Maximum or average over a window, channels last: PX neighbours of a row of four channels an
// invocation. Each number that their windows share is read once, each column is reduced once, and rows
// outside of the image are not read. Columns outside are clamped to the nearest one inside, which is in a
// maximum's window anyway. NVIDIA's compiler does not unroll loops of so much code, and keeps arrays that
// such loops index in memory: so macros write out the work for each column.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef PX
#define PX 2
#endif
#if PX > 4
#error PX must be 4 at most
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

#if MODE == 0
// The maximum over a window by single numbers, NaN if any is: for windows in which a number is not finite.
vec4 maximum(int start, int first, int last, int left) {
    vec4 value = vec4(IDENTITY);
    for (int row = first; row < last; ++row)
        for (int column = max(left, 0); column < min(left + KERNEL_W, w); ++column)
            value = greater(value, X_AT(start + (row * w + column) * (x_pixel / 4)));
    return value;
}
#endif

vec4 columns[16], sum;
int start, left, pixel;  // of the current row

#if MODE == 0
#define BEGIN vec4(LEAST)
#define TAKE(i, tap) columns[i] = max(columns[i], tap); sum += tap;
#define JOINED(a, b) max(a, b)
#define OUTSIDE(i)
#else
#define BEGIN vec4(0.0)
#define TAKE(i, tap) columns[i] += tap;
#define JOINED(a, b) ((a) + (b))
#define OUTSIDE(i) if (i < COLUMNS && (left + i < 0 || left + i >= w)) columns[i] = vec4(0.0);
#endif
#define COLUMN(i) \
    if (i < COLUMNS) { \
        vec4 tap = X_AT(start + clamp(left + i, 0, w - 1) * pixel); \
        TAKE(i, tap) \
    }
#define EACH_COLUMN(call) \
    call(0) call(1) call(2) call(3) call(4) call(5) call(6) call(7) call(8) call(9) call(10) call(11)
#define NEXT(p, i) if (i < KERNEL_W) value = JOINED(value, columns[p * STRIDE_W + i]);
#define PIXEL(p) \
    if (p < PX && column + p < ow) { \
        vec4 value = columns[p * STRIDE_W]; \
        NEXT(p, 1) NEXT(p, 2) NEXT(p, 3) NEXT(p, 4) \
        finish(value, quad, y, column + p, first, last); \
    }

// Stores the value of the window of a pixel.
void finish(vec4 value, int quad, int y, int column, int first, int last) {
    int window_left = column * STRIDE_W - PADDING_LEFT;
#if MODE == 0
    if (!is_finite((sum.x + sum.y) + (sum.z + sum.w))) {
        int image = y / oh;
        value = maximum(image * h * w * pixel + x_first / 4 + quad, first, last, window_left);
    }
#else
    value /= places(y % oh * STRIDE_H - PADDING_TOP, window_left, KERNEL_H, KERNEL_W, h, w);
#endif
    result[(y * ow + column) * (out_pixel / 4) + out_first / 4 + quad] = STORED(value);
}

void pool(int quad, int y, int column) {
    int image = y / oh;  // rows are counted through all images
    int top = (y - image * oh) * STRIDE_H - PADDING_TOP;
    int first = max(top, 0), last = min(top + KERNEL_H, h);
    left = column * STRIDE_W - PADDING_LEFT;
    pixel = x_pixel / 4;
    start = (image * h + first) * w * pixel + x_first / 4 + quad;
    for (int i = 0; i < 16; ++i) columns[i] = BEGIN;
    sum = vec4(0.0);  // of all numbers: it is not finite if one of them is not
    for (int row = first; row < last; ++row) {
        EACH_COLUMN(COLUMN)
        start += w * pixel;
    }
    EACH_COLUMN(OUTSIDE)
    PIXEL(0) PIXEL(1) PIXEL(2) PIXEL(3)
}

void main() {
    int quads = (c + 3) / 4;
    int group = int(INVOCATION_ID.x) / quads;
    int quad = int(INVOCATION_ID.x) - group * quads;
    if (group * PX >= ow) return;
    for (int y = int(WORKGROUP_ID.y); y < n * oh; y += int(WORKGROUP_COUNT.y))
        pool(quad, y, group * PX);
}
