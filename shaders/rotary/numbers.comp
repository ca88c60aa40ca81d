#version 310 es
// Rotary embeddings: a number an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#define HAS_ROTARY 1
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Places { int places[]; };
layout(std430, binding = 2) buffer Table { float rotary[]; };
layout(std430, binding = 3) buffer Out { float result[]; };
uniform int tokens, heads, width, context, start, x_row, rotary_row, out_row;
#define NUMBER(head, i) x[(head) + (i)]
#define TABLE(row, i) rotary[(row) + (i)]
#include "common/rotary.glsl"

void main() {
    int number = int(INVOCATION_ID.x), token = int(INVOCATION_ID.y);
    if (number >= heads * width || token >= tokens) return;
    int head = number / width, position = max(places[token], 0) % context;
    int from = token * x_row + start + head * width;
    result[token * out_row + number] = rotated(from, position * rotary_row, number - head * width);
}
