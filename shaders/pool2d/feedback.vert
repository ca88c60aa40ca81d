#version 300 es
// Maximum or average over a window by transform feedback: one pixel of four channels a vertex.
#ifndef MODE
#define MODE 0
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
#include "common/nan.glsl"
#include "common/texel.glsl"
uniform highp sampler2D x;
uniform int c, h, w, oh, ow;
out highp vec4 result;

void main() {
    int pixel = gl_VertexID % (oh * ow);
    int group = gl_VertexID / (oh * ow);
    int plane = group * h * w;
    int top = pixel / ow * STRIDE_H - PADDING_TOP;
    int left = pixel % ow * STRIDE_W - PADDING_LEFT;
#if MODE == 0
    vec4 value = vec4(uintBitsToFloat(0xff800000u));  // minus infinity
#else
    vec4 value = vec4(0.0);
#endif
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        int iy = top + ky * DILATION_H;
        if (iy < 0 || iy >= h) continue;
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            int ix = left + kx * DILATION_W;
            if (ix < 0 || ix >= w) continue;
            vec4 tap = texel(x, plane + iy * w + ix);
#if MODE == 0
            value = vec4(greater(value.x, tap.x), greater(value.y, tap.y),
                         greater(value.z, tap.z), greater(value.w, tap.w));
#else
            value += tap;
#endif
        }
    }
#if MODE == 1
#if COUNT_INCLUDE_PAD
    int height = min(top + KERNEL_H, h + PADDING_BOTTOM) - top;
    int width = min(left + KERNEL_W, w + PADDING_RIGHT) - left;
#else
    int height = min(top + KERNEL_H, h) - max(top, 0);
    int width = min(left + KERNEL_W, w) - max(left, 0);
#endif
    value /= float(height * width);
#endif
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    int rest = c - group % ((c + 3) / 4) * 4;
    result = vec4(value.x, rest > 1 ? value.y : 0.0, rest > 2 ? value.z : 0.0,
                  rest > 3 ? value.w : 0.0);
}
