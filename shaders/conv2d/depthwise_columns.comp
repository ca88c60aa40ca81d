#version 310 es
// A depthwise convolution by windows that slide down PX columns of ROWS rows of a channel.
#ifndef WG_X
#define WG_X 128
#endif
#ifndef PX
#define PX 7
#endif
#ifndef ROWS
#define ROWS 14
#endif
// The next row of x is loaded before the last is multiplied.
#ifndef AHEAD
#define AHEAD 1
#endif
// Weights are (c, 1, kh, kw), as they lie.
#ifndef PLAIN
#define PLAIN 0
#endif
#ifndef WEIGHT_HALF
#define WEIGHT_HALF 0
#endif
#include "common/launch.glsl"
#include "common/window.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
#if WEIGHT_HALF
#include "common/half.glsl"
layout(std430, binding = 1) buffer Weight { uint weight[]; };
#define WEIGHT(i) one_half(weight[(i) / 2], i)
#else
layout(std430, binding = 1) buffer Weight { float weight[]; };
#define WEIGHT(i) weight[i]
#endif
layout(std430, binding = 2) buffer Out { float result[]; };
#include <epilogue>
uniform int n, c, h, w, oh, ow;
uniform int x_first, x_pixel, out_first, out_pixel;

float in_at(int i) { return x[i]; }

float weight_of(int tap, int channel) {
#if PLAIN
    return WEIGHT(channel * KERNEL_H * KERNEL_W + tap);
#else
    return WEIGHT(tap * ((c + 3) / 4 * 4) + channel);
#endif
}

#define IN_H h
#define IN_W w
#define IN_FIRST x_first
#define IN_PIXEL x_pixel
#define OUT_H oh
#define OUT_W ow
#define OUT_FIRST out_first
#define OUT_PIXEL out_pixel
#define TOP PADDING_TOP
#define LEFT PADDING_LEFT
#include "conv2d/depthwise_columns.glsl"
