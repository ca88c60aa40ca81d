// What a pool does in a window, for kernels of any layout.
#ifndef MODE
#define MODE 0  // 0 maximum, 1 average
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
#ifndef WHOLE
#define WHOLE 0
#endif
#if WHOLE  // one window, the image: its size is a uniform, so that all sizes share a program
#undef KERNEL_H
#undef KERNEL_W
#define KERNEL_H h
#define KERNEL_W w
#endif
#include "common/nan.glsl"

#if MODE == 0
#define NOTHING uintBitsToFloat(0xff800000u)  // minus infinity
#define joined(value, tap) greater(value, tap)
#else
#define NOTHING 0.0
#define joined(value, tap) ((value) + (tap))
#endif

// What the sum over the window at `top`, `left` of an image of h rows and w columns is divided by.
float places(int top, int left, int h, int w) {
#if MODE == 0
    return 1.0;
#elif COUNT_INCLUDE_PAD
    int height = min(top + KERNEL_H, h + PADDING_BOTTOM) - top;
    int width = min(left + KERNEL_W, w + PADDING_RIGHT) - left;
    return float(height * width);
#else
    int height = min(top + KERNEL_H, h) - max(top, 0);
    int width = min(left + KERNEL_W, w) - max(left, 0);
    return float(height * width);
#endif
}
