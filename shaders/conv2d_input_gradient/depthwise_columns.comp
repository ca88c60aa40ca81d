#version 310 es
// A depthwise convolution's gradient by what it convolves, for strides of 1: the convolution of dy by
// the turned weight, by windows that slide down PX columns of ROWS rows of a channel. The weight is taken as it lies.
#ifndef WG_X
#define WG_X 128
#endif
#ifndef PX
#define PX 7
#endif
#ifndef ROWS
#define ROWS 14
#endif
// The next row of dy is loaded before the last is multiplied.
#ifndef AHEAD
#define AHEAD 1
#endif
#include "common/launch.glsl"
#include "common/window.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer Dy { float dy[]; };
layout(std430, binding = 1) buffer Weight { float weight[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
#include <epilogue>
uniform int n, c, h, w, oh, ow;

float in_at(int i) { return dy[i]; }

float weight_of(int tap, int channel) {
    return weight[(channel + 1) * KERNEL_H * KERNEL_W - 1 - tap];
}

#define IN_H oh
#define IN_W ow
#define IN_FIRST 0
#define IN_PIXEL ((c + 3) / 4 * 4)
#define OUT_H h
#define OUT_W w
#define OUT_FIRST 0
#define OUT_PIXEL IN_PIXEL
#define TOP (KERNEL_H - 1 - PADDING_TOP)
#define LEFT (KERNEL_W - 1 - PADDING_LEFT)
#include "conv2d/depthwise_columns.glsl"
