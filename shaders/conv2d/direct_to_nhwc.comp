#version 310 es
// Direct convolution of planar images of few channels, as a network's first is, to images with their
// channels last: PX pixels of a row by 4 TN output channels an invocation. The input's row segment
// is read once into registers and serves every tap of the kernel's row. With KEEP its column indices stay
// in registers, too; otherwise they are computed again for each row.
#ifndef WG_X
#define WG_X 4
#endif
#ifndef WG_Y
#define WG_Y 16
#endif
#ifndef PX
#define PX 4
#endif
#ifndef TN
#define TN 1
#endif
#ifndef KEEP
#define KEEP 1
#endif
#include "common/launch.glsl"
#include "common/window.glsl"
#include "conv2d/weight.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#include <epilogue>
uniform int n, c, h, w, o, oh, ow;
uniform int x_row, out_first, out_pixel;  // floats

// Pixels of a row that one invocation's windows span.
#define MOST_SPAN 16  // that fits into registers
#define SPAN ((PX - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)

// `column`, or -1 outside of the image.
int within(int column) { return column >= 0 && column < w ? column : -1; }

float pixel(int start, int column) {
    // Unconditional: a load that depends on a condition is waited for before the next is issued.
    float value = x[start + max(column, 0)];
    return column < 0 ? 0.0 : value;
}

void convolve(int quad, int left, int image, int y) {
    int quads = (o + 3) / 4;
    vec4 sum[PX * TN];
    for (int p = 0; p < PX * TN; ++p) sum[p] = vec4(0.0);
    int first = left * STRIDE_W - PADDING_LEFT;
#if KEEP && SPAN <= MOST_SPAN
    int columns[SPAN];
    for (int i = 0; i < SPAN; ++i) columns[i] = within(first + i);
#define COLUMN(i) columns[i]
#else
#define COLUMN(i) within(first + i)
#endif
    int tap = 0;  // of all channels' kernels
    for (int channel = 0; channel < c; ++channel) {
        for (int ky = 0; ky < KERNEL_H; ++ky, tap += KERNEL_W) {
            int row = y * STRIDE_H - PADDING_TOP + ky * DILATION_H;
            if (row < 0 || row >= h) continue;
            int start = image * x_row + (channel * h + row) * w;
#if SPAN <= MOST_SPAN
            float line[SPAN];
            for (int i = 0; i < SPAN; ++i) line[i] = pixel(start, COLUMN(i));
#define PIXEL(i) line[i]
#else
#define PIXEL(i) pixel(start, COLUMN(i))
#endif
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                for (int j = 0; j < TN; ++j) {
                    vec4 weights = WEIGHT((tap + kx) * quads + min(quad + j, quads - 1));
                    for (int p = 0; p < PX; ++p)
                        sum[p * TN + j] += PIXEL(p * STRIDE_W + kx * DILATION_W) * weights;
                }
            }
        }
    }
    vec4 totals[PX * TN];  // a copy: Mesa does not unroll loops of long epilogues, and spills what they index
    for (int i = 0; i < PX * TN; ++i) totals[i] = sum[i];
    for (int p = 0; p < PX; ++p) {
        for (int j = 0; j < TN; ++j) {
            if (left + p >= ow || quad + j >= quads) continue;
            int pixel = (image * oh + y) * ow + left + p;
            int at = pixel * (out_pixel >> 2) + (out_first >> 2) + quad + j;
            result[at] = epilogue(totals[p * TN + j], at, quad + j);
        }
    }
}

void main() {
    int quad = int(INVOCATION_ID.x) * TN;
    int left = int(INVOCATION_ID.y) * PX;
    if (quad >= (o + 3) / 4 || left >= ow) return;
    for (int y = int(WORKGROUP_ID.z); y < n * oh; y += int(WORKGROUP_COUNT.z))
        convolve(quad, left, y / oh, y % oh);
}
