#version 300 es
// Maximum or average over a window by transform feedback: one pixel of four channels a vertex.
#include "pool2d/windows.glsl"
#include "common/first_of.glsl"
#include "common/texel.glsl"
#if WHOLE || SHARED  // windows may be large, and llvmpipe leaves loops after 65,535 turns in all
#define TURN 4
#else
#define TURN 1
#endif
#define TAP(kx) { \
    int ix = left + (kx) * DILATION_W; \
    if ((kx) < width && ix >= 0 && ix < w) value = joined(value, texel(x, plane + iy * w + ix)); }
uniform highp X_SAMPLER x;
uniform int c, h, w, oh, ow;

vec4 vector(int i) {
    int pixel = i % (oh * ow);
    int group = i / (oh * ow);
    int plane = group * h * w;
    int top = WINDOW_TOP(pixel / ow), height = WINDOW_HEIGHT(pixel / ow);
    int left = WINDOW_LEFT(pixel % ow), width = WINDOW_WIDTH(pixel % ow);
    vec4 value = vec4(IDENTITY);
    for (int ky = 0; ky < height; ++ky) {
        int iy = top + ky * DILATION_H;
        if (iy < 0 || iy >= h) continue;
        for (int kx = 0; kx < width; kx += TURN) {
            TAP(kx)
#if TURN > 1
            TAP(kx + 1) TAP(kx + 2) TAP(kx + 3)
#endif
        }
    }
#if MODE == 1
    value /= places(top, left, height, width, h, w);
#endif
    // Lanes past the last channel stay 0: they meet zero weights in the next layer.
    return first_of(value, c - group % ((c + 3) / 4) * 4);
}
#include "common/capture.glsl"
