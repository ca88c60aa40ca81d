#version 300 es
// The patch matrix by transform feedback, from NC4HW4 images: where c is a multiple of four, four
// elements of a row are one texel.
#include "common/window.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform int c, h, w, oh, ow, k;
uniform int out_row;

// The quad of channels with `channel`, of the pixel under a tap of a window.
vec4 at_tap(int window, int tap, int channel) {
    int image = window / (oh * ow);
    int pixel = window - image * (oh * ow);
    int row = pixel / ow * STRIDE_H - PADDING_TOP + tap / KERNEL_W * DILATION_H;
    int column = pixel % ow * STRIDE_W - PADDING_LEFT + tap % KERNEL_W * DILATION_W;
    if (row < 0 || row >= h || column < 0 || column >= w) return vec4(0.0);
    return texel(x, ((image * ((c + 3) / 4) + channel / 4) * h + row) * w + column);
}

vec4 vector(int i) {
    int window = i * 4 / out_row;
    int first = i * 4 - window * out_row;
    if (c % 4 == 0) return at_tap(window, first / c, first % c);
    vec4 value = vec4(0.0);
    for (int lane = 0; lane < 4; ++lane) {
        int element = min(first + lane, k - 1);  // behind the last one there is padding
        int channel = element % c;
        value[lane] = at_tap(window, element / c, channel)[channel % 4];
    }
    return value;
}
#include "common/capture.glsl"
