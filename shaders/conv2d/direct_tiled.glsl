// Direct convolution of planar images through shared memory: a workgroup computes WG_Z rows of WG_Y PX results
// by 4 WG_X TN output channels, an invocation PX results of a row by 4 TN channels. For several input channels
// at once, the area of x that the tile's windows read and the weights are loaded to shared memory. For windows
// that span little. With POOL the convolution is pooled by windows of 2 x 2.
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "common/window.glsl"
#include "common/pooled.glsl"
#include "common/fours.glsl"
#include "conv2d/weight.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(std430, binding = 0) buffer X { float x[]; };
#if PLANAR
layout(std430, binding = 2) buffer Out { float result[]; };
uniform int out_row;
#else
layout(std430, binding = 2) buffer Out { OUT_FOUR result[]; };
uniform int out_first, out_pixel;  // floats, multiples of 4
#endif
#include <epilogue>
uniform int n, c, h, w, o, oh, ow;
uniform int x_row;

#define INVOCATIONS (WG_X * WG_Y * WG_Z)
#define QUADS (WG_X * TN)
#define ACROSS (SIDE * PX)  // pixels of a row that an invocation convolves, in SIDE rows
// Columns of a row of x that the windows of so many pixels span; WIDE columns and HIGH rows for the tile.
#define SPAN_OF(pixels) (((pixels) - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)
#define SPAN SPAN_OF(ACROSS)
#define WIDE SPAN_OF(WG_Y * ACROSS)
#define HIGH ((SIDE * WG_Z - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1)
#define AREA (WIDE * HIGH)
#define TAPS (KERNEL_H * KERNEL_W)
// Input channels at once: one, and as many more as fit into ROOM floats.
#define FITTING (1 + ROOM / (AREA + 4 * TAPS * QUADS))
#define AT_ONCE (FITTING < MOST ? FITTING : MOST)
#define MOST 8

shared float areas[AT_ONCE * AREA];  // of x, channel by channel
shared vec4 weights[AT_ONCE * TAPS * QUADS];
vec4 sum[SIDE * ACROSS * TN];

// Number `i` of the areas of the channels from `channel` on; 0 outside of the image.
float area_value(int i, int image, int channel, int top, int left) {
    int row = i / WIDE, column = left + i - row * WIDE;
    int area = row / HIGH;
    row += top - area * HIGH;
    // Unconditional: a load that depends on a condition is waited for before the next is issued.
    int line = (channel + area) * h + clamp(row, 0, h - 1);
    float value = x[image * x_row + line * w + clamp(column, 0, w - 1)];
    return row >= 0 && row < h && column >= 0 && column < w ? value : 0.0;
}

// Loads the areas and weights of `channels` channels from `channel` on to shared memory.
void load_channels(int image, int channel, int channels, int top, int left, int quad) {
    int lane = int(gl_LocalInvocationIndex);
    int numbers = channels * AREA, fours = channels * TAPS * QUADS, quads = (o + 3) / 4;
    for (int first = lane; first < fours; first += LOADS * INVOCATIONS) {
        vec4 loaded[LOADS];
        for (int i = 0; i < LOADS; ++i) {
            int item = min(first + i * INVOCATIONS, fours - 1), tap = item / QUADS;
            int column = min(quad + item - tap * QUADS, quads - 1);
            loaded[i] = WEIGHT((channel * TAPS + tap) * quads + column);
        }
        for (int i = 0; i < LOADS; ++i)
            if (first + i * INVOCATIONS < fours) weights[first + i * INVOCATIONS] = loaded[i];
    }
    for (int first = lane; first < numbers; first += LOADS * INVOCATIONS) {
        float loaded[LOADS];
        for (int i = 0; i < LOADS; ++i)
            loaded[i] = area_value(min(first + i * INVOCATIONS, numbers - 1), image, channel, top, left);
        for (int i = 0; i < LOADS; ++i)
            if (first + i * INVOCATIONS < numbers) areas[first + i * INVOCATIONS] = loaded[i];
    }
}

// Adds the products of all taps of `channels` channels.
void multiply(int channels) {
    ivec3 position = ivec3(gl_LocalInvocationID);
    for (int row = 0; row < channels * KERNEL_H; ++row) {
        int area = row / KERNEL_H, ky = row - area * KERNEL_H;
        float line[SIDE * SPAN];
        for (int i = 0; i < SIDE; ++i) {
            int down = (position.z * SIDE + i) * STRIDE_H + ky * DILATION_H;
            int start = (area * HIGH + down) * WIDE + position.y * ACROSS * STRIDE_W;
            for (int j = 0; j < SPAN; ++j) line[i * SPAN + j] = areas[start + j];
        }
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            for (int j = 0; j < TN; ++j) {
                vec4 four = weights[(row * KERNEL_W + kx) * QUADS + j * WG_X + position.x];
                for (int i = 0; i < SIDE; ++i)
                    for (int p = 0; p < ACROSS; ++p)
                        sum[(i * ACROSS + p) * TN + j] +=
                            line[i * SPAN + p * STRIDE_W + kx * DILATION_W] * four;
            }
        }
    }
}

// Stores result `p` of this invocation's row for four output channels, `quad`, which are its group `j`.
void finish(int p, int j, int image, int y, int column, int quad) {
#if PLANAR
    int plane = oh * ow;
    int at = image * out_row + quad * 4 * plane + y * ow + column;
#define FINISHED(i) epilogue(sum[(i) * TN + j], 0, quad)  // its operands have a number for each channel
#else
    int at = ((image * oh + y) * ow + column) * (out_pixel >> 2) + (out_first >> 2) + quad;
#define FINISHED(i) epilogue(sum[(i) * TN + j], at, quad)
#endif
#if POOL
    int first = 2 * p;
    vec4 a = FINISHED(first), b = FINISHED(first + 1);
    vec4 c = FINISHED(first + ACROSS), d = FINISHED(first + ACROSS + 1);
    vec4 value = POOLED(a, b, c, d);
#else
    vec4 value = FINISHED(p);
#endif
#if PLANAR
    for (int i = 0; i < 4; ++i)
        if (quad * 4 + i < o) result[at + i * plane] = value[i];
#else
    result[at] = STORED(value);
#endif
}

void main() {
    ivec3 position = ivec3(gl_LocalInvocationID);
    int quad = int(WORKGROUP_ID.x) * QUADS, left = int(WORKGROUP_ID.y) * WG_Y * PX;
    int down = (oh + WG_Z - 1) / WG_Z;  // tiles of an image
    for (int tile = int(WORKGROUP_ID.z); tile < n * down; tile += int(WORKGROUP_COUNT.z)) {
        int image = tile / down, top = (tile - image * down) * WG_Z;
        for (int i = 0; i < SIDE * ACROSS * TN; ++i) sum[i] = vec4(0.0);
        for (int channel = 0; channel < c; channel += AT_ONCE) {
            int channels = min(AT_ONCE, c - channel);
            workgroup_barrier();
            load_channels(image, channel, channels, top * SIDE * STRIDE_H - PADDING_TOP,
                 left * SIDE * STRIDE_W - PADDING_LEFT, quad);
            workgroup_barrier();
            multiply(channels);
        }
        for (int p = 0; p < PX; ++p) {
            for (int j = 0; j < TN; ++j) {
                int y = top + position.z, column = left + position.y * PX + p;
                int out_quad = quad + j * WG_X + position.x;
                if (y < oh && column < ow && out_quad < (o + 3) / 4)
                    finish(p, j, image, y, column, out_quad);
            }
        }
    }
}
