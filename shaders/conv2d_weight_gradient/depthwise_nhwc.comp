#version 310 es
// A depthwise convolution's gradient by its weight, channels last: an invocation adds up all taps of
// four channels, the LANES invocations of a workgroup that are at the same channels share the pixels
// of the result's gradient, and shared memory joins their sums.
#ifndef QUADS
#define QUADS 4
#endif
#ifndef LANES
#define LANES 32
#endif
#ifndef AT_ONCE
#define AT_ONCE 3  // taps whose sums are joined together: the fewer, the longer all wait for each other
#endif
#include "common/launch.glsl"
#include "common/wait.glsl"
#include "common/window.glsl"
layout(local_size_x = QUADS, local_size_y = LANES) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Dy { vec4 dy[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
uniform int n, c, h, w, oh, ow, chunk;
#ifndef TAPS
#define TAPS (KERNEL_H * KERNEL_W)
#endif
shared vec4 joined[AT_ONCE * LANES * QUADS];

void main() {
    int lane = int(gl_LocalInvocationID.y), part = int(WORKGROUP_ID.z);
    int quads = (c + 3) / 4, own = int(INVOCATION_ID.x), quad = min(own, quads - 1);
    int first_row = part * chunk;
    int pixels = (min(first_row + chunk, n * oh) - first_row) * ow;
    vec4 sum[TAPS];
    for (int tap = 0; tap < TAPS; ++tap) sum[tap] = vec4(0.0);
    for (int pixel = lane; pixel < pixels; pixel += LANES) {
        int row = pixel / ow, column = pixel - row * ow;
        row += first_row;
        int image = row / oh;
        int top = (row - image * oh) * STRIDE_H - PADDING_TOP;
        int left = column * STRIDE_W - PADDING_LEFT;
        vec4 given = dy[(row * ow + column) * quads + quad];
        for (int tap = 0; tap < TAPS; ++tap) {
            ivec2 at = ivec2(left + tap % KERNEL_W * DILATION_W, top + tap / KERNEL_W * DILATION_H);
            // Read in any case: loads that hang on a condition are waited for one by one.
            int iy = clamp(at.y, 0, h - 1), ix = clamp(at.x, 0, w - 1);
            vec4 value = x[((image * h + iy) * w + ix) * quads + quad];
            sum[tap] += ivec2(ix, iy) == at ? given * value : vec4(0.0);
        }
    }
    int line = int(gl_LocalInvocationID.x), channel = quad * 4;
    for (int first = 0; first < TAPS; first += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; ++i)
            if (first + i < TAPS) joined[(i * LANES + lane) * QUADS + line] = sum[first + i];
        for (int width = LANES; width > 1;) {
            int rest = max(width / 4, 1);
            wait();
            if (lane < rest)
                for (int i = 0; i < AT_ONCE; ++i)
                    for (int other = lane + rest; other < width; other += rest)
                        joined[(i * LANES + lane) * QUADS + line] +=
                            joined[(i * LANES + other) * QUADS + line];
            width = rest;
        }
        if (lane == 0 && own < quads)
            for (int i = 0; i < min(AT_ONCE, TAPS - first); ++i)
                for (int k = 0; k < min(4, c - channel); ++k)
                    result[(part * c + channel + k) * TAPS + first + i] =
                        joined[i * LANES * QUADS + line][k];
        wait();
    }
}
