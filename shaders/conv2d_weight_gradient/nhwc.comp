#version 310 es
// A convolution's gradient by its weight, channels last: an invocation adds up one tap of 4 TM output
// by 4 TN input channels, WG_Z invocations share the rows of the result's gradient, and shared memory
// joins their sums.
#ifndef WG_X
#define WG_X 8
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef WG_Z
#define WG_Z 2
#endif
#ifndef TM
#define TM 1
#endif
#ifndef TN
#define TN 1
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "common/window.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Dy { vec4 dy[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
uniform int n, c, h, w, o, oh, ow, parts, chunk;
shared vec4 joined[WG_X * WG_Y * WG_Z];
vec4 sum[4 * TM * TN];  // of each output channel, the input channels

void add_row(int dy_at, int x_at, int count, int dy_quads, int x_quads, int a_first, int b_first) {
    for (int i = 0; i < count; ++i) {
        vec4 b[TN];
        for (int j = 0; j < TN; ++j)
            b[j] = x[x_at + min(b_first + j * WG_X, x_quads - 1)];
        for (int k = 0; k < TM; ++k) {
            vec4 a = dy[dy_at + min(a_first + k * WG_Y, dy_quads - 1)];
            for (int j = 0; j < TN; ++j) {
                sum[(k * 4) * TN + j] += a.x * b[j];
                sum[(k * 4 + 1) * TN + j] += a.y * b[j];
                sum[(k * 4 + 2) * TN + j] += a.z * b[j];
                sum[(k * 4 + 3) * TN + j] += a.w * b[j];
            }
        }
        dy_at += dy_quads;
        x_at += x_quads * STRIDE_W;
    }
}

void main() {
    int x_quads = (c + 3) / 4, dy_quads = (o + 3) / 4;
    int slice = int(gl_LocalInvocationID.z);
    int b_first = int(WORKGROUP_ID.x) * WG_X * TN + int(gl_LocalInvocationID.x);
    int a_first = int(WORKGROUP_ID.y) * WG_Y * TM + int(gl_LocalInvocationID.y);
    int part = int(WORKGROUP_ID.z) / (KERNEL_H * KERNEL_W);
    int tap = int(WORKGROUP_ID.z) - part * (KERNEL_H * KERNEL_W);
    int ky = tap / KERNEL_W;
    // The columns of the result whose tap lies on the image: from `left` on, `count` of them.
    int shift = tap % KERNEL_W * DILATION_W - PADDING_LEFT;
    int left = shift < 0 ? (-shift + STRIDE_W - 1) / STRIDE_W : 0;
    int count = shift < w ? min(ow, (w - 1 - shift) / STRIDE_W + 1) - left : 0;
    int last = min((part + 1) * chunk, n * oh);

    for (int i = 0; i < 4 * TM * TN; ++i) sum[i] = vec4(0.0);
    for (int row = part * chunk + slice; row < last; row += WG_Z) {
        int image = row / oh;
        int iy = (row - image * oh) * STRIDE_H - PADDING_TOP + ky * DILATION_H;
        if (iy < 0 || iy >= h) continue;
        int column = left * STRIDE_W + shift;
        add_row((row * ow + left) * dy_quads, ((image * h + iy) * w + column) * x_quads, count,
                dy_quads, x_quads, a_first, b_first);
    }
    int lanes = WG_X * WG_Y;
    int place = slice * lanes + int(gl_LocalInvocationID.y) * WG_X + int(gl_LocalInvocationID.x);
    for (int i = 0; i < 4 * TM * TN; ++i) {
#if WG_Z > 1
        joined[place] = sum[i];
        for (int width = WG_Z / 2; width > 0; width /= 2) {
            workgroup_barrier();
            if (slice < width) joined[place] += joined[place + width * lanes];
        }
        vec4 whole = joined[place];
        workgroup_barrier();
#else
        vec4 whole = sum[i];
#endif
        int channel = (a_first + i / (4 * TN) * WG_Y) * 4 + i / TN % 4;
        int quad = b_first + i % TN * WG_X;
        if (slice > 0 || channel >= o || quad >= x_quads) continue;
        for (int j = 0; j < min(4, c - quad * 4); ++j)
            result[((part * o + channel) * c + quad * 4 + j) * (KERNEL_H * KERNEL_W) + tap] = whole[j];
    }
}
