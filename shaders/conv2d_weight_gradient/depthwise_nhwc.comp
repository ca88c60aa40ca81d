#version 310 es
// A depthwise convolution's gradient by its weight, channels last: an invocation adds up TAPS_EACH taps
// of four channels, the LANES invocations of a workgroup that are at the same channels share the
// pixels of the result's gradient, and shared memory joins their sums.
#ifndef QUADS
#define QUADS 4
#endif
#ifndef LANES
#define LANES 32
#endif
#ifndef TAPS_EACH
#define TAPS_EACH 9
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "common/window.glsl"
layout(local_size_x = QUADS, local_size_y = LANES) in;
layout(std430, binding = 0) buffer X { vec4 x[]; };
layout(std430, binding = 1) buffer Dy { vec4 dy[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
uniform int n, c, h, w, oh, ow, chunk;
#ifndef TAPS
#define TAPS (KERNEL_H * KERNEL_W)
#endif
#define TAP_GROUPS ((TAPS + TAPS_EACH - 1) / TAPS_EACH)
shared vec4 joined[LANES * QUADS];

void main() {
    int lane = int(gl_LocalInvocationID.y), part = int(WORKGROUP_ID.z) / TAP_GROUPS;
    int first_tap = (int(WORKGROUP_ID.z) - part * TAP_GROUPS) * TAPS_EACH;
    int quads = (c + 3) / 4, own = int(INVOCATION_ID.x), quad = min(own, quads - 1);
    int first_row = part * chunk;
    int pixels = (min(first_row + chunk, n * oh) - first_row) * ow;
    vec4 sum[TAPS_EACH];
    for (int i = 0; i < TAPS_EACH; ++i) sum[i] = vec4(0.0);
    for (int pixel = lane; pixel < pixels; pixel += LANES) {
        int row = pixel / ow, column = pixel - row * ow;
        row += first_row;
        int image = row / oh;
        int top = (row - image * oh) * STRIDE_H - PADDING_TOP;
        int left = column * STRIDE_W - PADDING_LEFT;
        vec4 given = dy[(row * ow + column) * quads + quad];
        for (int i = 0; i < TAPS_EACH; ++i) {
            int tap = min(first_tap + i, TAPS - 1);
            ivec2 at = ivec2(left + tap % KERNEL_W * DILATION_W, top + tap / KERNEL_W * DILATION_H);
            // Unconditional: a load that depends on a condition is waited for before the next is issued.
            int iy = clamp(at.y, 0, h - 1), ix = clamp(at.x, 0, w - 1);
            vec4 value = x[((image * h + iy) * w + ix) * quads + quad];
            sum[i] += ivec2(ix, iy) == at ? given * value : vec4(0.0);
        }
    }
    int place = lane * QUADS + int(gl_LocalInvocationID.x), channel = quad * 4;
    for (int i = 0; i < TAPS_EACH; ++i) {
        joined[place] = sum[i];
        for (int width = LANES; width > 1;) {  // four lanes to one at a time
            int rest = max(width / 4, 1);
            workgroup_barrier();
            if (lane < rest)
                for (int other = rest; lane + other < width; other += rest)
                    joined[place] += joined[place + other * QUADS];
            width = rest;
        }
        vec4 whole = joined[place];
        workgroup_barrier();
        if (lane > 0 || own >= quads || first_tap + i >= TAPS) continue;
        for (int k = 0; k < min(4, c - channel); ++k)
            result[(part * c + channel + k) * TAPS + first_tap + i] = whole[k];
    }
}
