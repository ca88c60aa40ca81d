// The windows of a pool, and the reduction of a window, for kernels of any layout.
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
#define DIVIDED 0
#endif
#ifndef WHOLE
#define WHOLE 0
#endif
#ifndef SHARED
#define SHARED 0
#endif
#if WHOLE  // one window, the image: its size is a uniform, so that all sizes share a program
#undef KERNEL_H
#undef KERNEL_W
#define KERNEL_H h
#define KERNEL_W w
#endif
#if SHARED  // oh x ow windows divide the image: a window's range follows from its index
#define WINDOW_TOP(y) ((y) * h / oh)
#define WINDOW_LEFT(x) ((x) * w / ow)
#define WINDOW_HEIGHT(y) ((((y) + 1) * h + oh - 1) / oh - (y) * h / oh)
#define WINDOW_WIDTH(x) ((((x) + 1) * w + ow - 1) / ow - (x) * w / ow)
#else
#define WINDOW_TOP(y) ((y) * STRIDE_H - PADDING_TOP)
#define WINDOW_LEFT(x) ((x) * STRIDE_W - PADDING_LEFT)
#define WINDOW_HEIGHT(y) KERNEL_H
#define WINDOW_WIDTH(x) KERNEL_W
#endif
#if DIVIDED
uniform float divisor;
#endif
#include "common/nan.glsl"

#if MODE == 0
#define IDENTITY uintBitsToFloat(0xff800000u)  // minus infinity
#define joined(value, tap) greater(value, tap)
#else
#define IDENTITY 0.0
#define joined(value, tap) ((value) + (tap))
#endif

// The divisor of the sum over the window of `height` x `width` at `top`, `left` of an image of h rows and w
// columns.
float places(int top, int left, int height, int width, int h, int w) {
#if MODE == 0
    return 1.0;
#elif DIVIDED
    return divisor;
#elif COUNT_INCLUDE_PAD
    int rows = min(top + height, h + PADDING_BOTTOM) - top;
    int columns = min(left + width, w + PADDING_RIGHT) - left;
    return float(rows * columns);
#else
    int rows = min(top + height, h) - max(top, 0);
    int columns = min(left + width, w) - max(left, 0);
    return float(rows * columns);
#endif
}
