#version 310 es
// A convolution's gradient by its weight, planar images, any number of groups: an invocation adds up
// TW taps of a kernel's row, of TO output channels by one input channel; the SLICES invocations of a
// workgroup that are at the same taps share the pixels, PX neighbours of a row each, and shared
// memory joins their sums.
#ifndef SLICES
#define SLICES 32
#endif
#ifndef WG_Y
#define WG_Y 2
#endif
#ifndef TO
#define TO 2
#endif
#ifndef TW
#define TW 8
#endif
#ifndef PX
#define PX 4
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "common/window.glsl"
#ifndef GROUPS
#define GROUPS 1
#endif
layout(local_size_x = SLICES, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Dy { float dy[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
uniform int n, c, h, w, o, oh, ow, share, o_group, parts, chunk;
uniform int x_row, dy_row;
// How many taps an invocation has, and the blocks of them in a row.
#if KERNEL_W < TW
#define WIDTH KERNEL_W
#else
#define WIDTH TW
#endif
#define BLOCKS ((KERNEL_W + TW - 1) / TW)
#define SUMS (TO * WIDTH)
shared float joined[SLICES * WG_Y * SUMS];
float sum[SUMS];

// Pixels of a row of x that the taps of PX windows span.
#define SPAN ((PX - 1) * STRIDE_W + (WIDTH - 1) * DILATION_W + 1)

float pixel(int start, int column) {
    // Unconditional: a load that depends on a condition is waited for before the next is issued.
    float value = x[start + clamp(column, 0, w - 1)];
    return column >= 0 && column < w ? value : 0.0;
}

// The products of PX gradients of each channel from `left` on with what their taps meet.
void add_products(int dy_at, int x_at, int left, int first_tap, int channels) {
    int first = left * STRIDE_W - PADDING_LEFT + first_tap * DILATION_W;
#if SPAN <= 16
    // The row's segment is read once and serves every tap.
    float line[SPAN];
    for (int i = 0; i < SPAN; ++i) line[i] = pixel(x_at, first + i);
#define MET(i) line[i]
#else
#define MET(i) pixel(x_at, first + (i))
#endif
    for (int p = 0; p < PX; ++p) {
        if (left + p >= ow) break;
        float given[TO];
        for (int i = 0; i < TO; ++i)
            given[i] = dy[dy_at + min(i, channels - 1) * oh * ow + left + p];
        for (int kx = 0; kx < WIDTH; ++kx) {
            float met = MET(p * STRIDE_W + kx * DILATION_W);
            for (int i = 0; i < TO; ++i) sum[i * WIDTH + kx] += given[i] * met;
        }
    }
}

void main() {
    int lane = int(gl_LocalInvocationID.x);
    int item_lane = int(gl_LocalInvocationID.y);
    int part = int(WORKGROUP_ID.z);
    int blocks = (o_group + TO - 1) / TO;
    int items = GROUPS * blocks * share * KERNEL_H * BLOCKS;
    int item = min(int(INVOCATION_ID.y), items - 1);
    int block = item % BLOCKS;
    int ky = item / BLOCKS % KERNEL_H;
    int channel = item / (BLOCKS * KERNEL_H) % share;
    int channels_block = item / (BLOCKS * KERNEL_H * share);
    int group = channels_block / blocks;
    int in_group = (channels_block - group * blocks) * TO;
    int o_first = group * o_group + in_group;
    int channels = min(o_group - in_group, TO);
    int across = (ow + PX - 1) / PX;
    int first_row = part * chunk;
    int units = (min(first_row + chunk, n * oh) - first_row) * across;

    for (int i = 0; i < SUMS; ++i) sum[i] = 0.0;
    for (int unit = lane; unit < units; unit += SLICES) {
        int row = unit / across;
        int left = (unit - row * across) * PX;
        row += first_row;
        int image = row / oh;
        int y = row - image * oh;
        int iy = y * STRIDE_H - PADDING_TOP + ky * DILATION_H;
        if (iy < 0 || iy >= h) continue;
        add_products(image * dy_row + (o_first * oh + y) * ow,
                     image * x_row + ((group * share + channel) * h + iy) * w, left, block * TW,
                     channels);
    }
    int place = item_lane * SLICES + lane;
    for (int i = 0; i < SUMS; ++i) joined[i * (SLICES * WG_Y) + place] = sum[i];
    for (int width = SLICES / 2; width > 0; width /= 2) {
        workgroup_barrier();
        if (lane < width)
            for (int i = 0; i < SUMS; ++i) {
                int at = i * (SLICES * WG_Y) + place;
                joined[at] += joined[at + width];
            }
    }
    workgroup_barrier();
    if (int(INVOCATION_ID.y) >= items) return;
    for (int i = lane; i < SUMS; i += SLICES) {
        int kx = block * TW + i % WIDTH;
        int at = i / WIDTH;
        if (kx >= KERNEL_W || at >= channels) continue;
        int row = ((part * o + o_first + at) * share + channel) * KERNEL_H + ky;
        result[row * KERNEL_W + kx] = joined[i * (SLICES * WG_Y) + item_lane * SLICES];
    }
}
