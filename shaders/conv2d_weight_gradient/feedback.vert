#version 300 es
// A convolution's gradient by its weight by transform feedback, any number of groups: four
// neighbouring numbers a vertex, one by one.
#include "common/window.glsl"
#include "common/texel.glsl"
#ifndef DY_SAMPLER
#define DY_SAMPLER sampler2D
#endif
uniform highp X_SAMPLER x;
uniform highp DY_SAMPLER dy;
uniform int n, h, w, o, oh, ow, share, o_group, chunk;
uniform int x_row, dy_row, out_size;
out highp vec4 result;

// The sum over the rows of dy that a part has.
float number(int i) {
    int kx = i % KERNEL_W;
    int ky = i / KERNEL_W % KERNEL_H;
    int line = i / (KERNEL_W * KERNEL_H);
    int channel = line % share;
    int part = line / (share * o);
    int o_channel = line / share - part * o;
    channel += o_channel / o_group * share;
    // The columns of dy whose tap lies on the image.
    int shift = kx * DILATION_W - PADDING_LEFT;
    int left = shift < 0 ? (-shift + STRIDE_W - 1) / STRIDE_W : 0;
    int end = shift < w ? min(ow, (w - 1 - shift) / STRIDE_W + 1) : 0;
    int last = min((part + 1) * chunk, n * oh);
    float sum = 0.0;
    for (int row = part * chunk; row < last; ++row) {
        int image = row / oh;
        int y = row - image * oh;
        int iy = y * STRIDE_H - PADDING_TOP + ky * DILATION_H;
        if (iy < 0 || iy >= h) continue;
        int dy_at = image * dy_row + (o_channel * oh + y) * ow;
        int x_at = image * x_row + (channel * h + iy) * w + shift;
        for (int column = left; column < end; ++column)
            sum += texel(dy, dy_at + column).x * texel(x, x_at + column * STRIDE_W).x;
    }
    return sum;
}

void main() {
    int lanes = min(out_size - gl_VertexID * 4, 4);
    result = vec4(0.0);
    for (int lane = 0; lane < lanes; ++lane) result[lane] = number(gl_VertexID * 4 + lane);
}
