#version 310 es
// Depthwise convolution, channels last: PX pixels of a row of four channels an invocation. All that the windows
// of these pixels read of a row of x is loaded at once. SLICES invocations share the rows of a window, so that
// few results still have many invocations.
#ifndef WG_X
#define WG_X 16
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef PX
#define PX 2
#endif
#ifndef SLICES
#define SLICES 1
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "conv2d/nhwc.glsl"
#include "conv2d/line.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = SLICES) in;

vec4 sum[PX];

// The weights of four channels at a tap.
vec4 weights_at(int quad, int quads, int tap) {
#if PLAIN
    ivec4 index = min(ivec4(0, 1, 2, 3) + 4 * quad, c - 1) * (KERNEL_H * KERNEL_W) + tap;
    return vec4(weight[index.x], weight[index.y], weight[index.z], weight[index.w]);
#else
    return WEIGHT(tap * quads + quad);
#endif
}

// Adds up this slice's rows of the windows.
void accumulate_rows(int quad, int y, int left, int slice) {
    int quads = (c + 3) / 4;
    int image = y / oh;  // rows are counted through all images
    int top = (y - image * oh) * STRIDE_H - PADDING_TOP;
    for (int p = 0; p < PX; ++p) sum[p] = vec4(0.0);
    for (int first = 0; first < KERNEL_H; first += SLICES) {
        int ky = min(first + slice, KERNEL_H - 1);
        int row = top + ky * DILATION_H;
        bool inside = first + slice == ky && row >= 0 && row < h;
        int start = inside ? (image * h + row) * w : -1;
#define COLUMN(p, kx) ((left + (p)) * STRIDE_W - PADDING_LEFT + (kx) * DILATION_W)
#if KERNEL_W <= MAX_LINE / PX
        vec4 line[LINE_COLUMNS(PX)];
        for (int p = 0; p < PX; ++p)
            for (int kx = 0; kx < KERNEL_W; ++kx)
                if (IS_FIRST_USE(p, kx))
                    line[LINE_INDEX(p, kx)] = x_or_zero(start, COLUMN(p, kx), quad, image);
#define X_IN_WINDOW(p, kx) line[LINE_INDEX(p, kx)]
#else
#define X_IN_WINDOW(p, kx) x_or_zero(start, COLUMN(p, kx), quad, image)
#endif
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            vec4 weights = weights_at(quad, quads, ky * KERNEL_W + kx);
            // A slice without a row adds nothing: 0 times an infinite weight would be NaN.
            if (KERNEL_H % SLICES > 0 && first + slice > ky) weights = vec4(0.0);
            for (int p = 0; p < PX; ++p) sum[p] += X_IN_WINDOW(p, kx) * weights;
        }
    }
}

#if SLICES > 1
#define LANES (WG_X * WG_Y)
shared vec4 parts[SLICES * PX * LANES];

// Adds the sums of all slices; only the first slice gets the totals.
void add_slices(int slice) {
    int lane = int(gl_LocalInvocationIndex) % LANES;
    workgroup_barrier();
    for (int p = 0; p < PX; ++p) parts[(slice * PX + p) * LANES + lane] = sum[p];
    workgroup_barrier();
    for (int p = 0; p < PX; ++p)
        for (int other = 1; other < SLICES; ++other)
            sum[p] += parts[(other * PX + p) * LANES + lane];
}
#endif

void main() {
    int quad = int(INVOCATION_ID.x);
    int left = int(INVOCATION_ID.y) * PX;
    int slice = SLICES > 1 ? int(gl_LocalInvocationID.z) : 0;
    bool within = quad < (c + 3) / 4 && left < ow;
#if SLICES == 1
    if (!within) return;
#endif
    for (int y = int(WORKGROUP_ID.z); y < n * oh; y += int(WORKGROUP_COUNT.z)) {
        accumulate_rows(within ? quad : 0, y, left, slice);
#if SLICES > 1
        add_slices(slice);
#endif
        for (int p = 0; p < PX; ++p)
            if (within && slice == 0 && left + p < ow) finish(sum[p], y * ow + left + p, quad);
    }
}
