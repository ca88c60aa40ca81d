#version 310 es
// Keys and values of new tokens, put where they are to lie in the cache: a number an invocation.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef HAS_ROTARY
#define HAS_ROTARY 0
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Places { int places[]; };
layout(std430, binding = 2) buffer Cache { float result[]; };
#if HAS_ROTARY
layout(std430, binding = 3) buffer Rotary { float rotary[]; };
#endif
uniform int tokens, heads, width, context, start, values_start, rows, x_row, rotary_row;
#define NUMBER(head, i) x[(head) + (i)]
#define TABLE(row, i) rotary[(row) + (i)]
#include "common/rotary.glsl"

void main() {
    int number = int(INVOCATION_ID.x), token = int(INVOCATION_ID.y), keys = heads * width;
    if (number >= 2 * keys || token >= tokens) return;
    int place = places[token];
    if (place < 0 || place >= rows) return;
    int to = place * 2 * keys + number;
    if (number >= keys) {
        result[to] = x[token * x_row + values_start + number - keys];
        return;
    }
    int head = number / width;
    int from = token * x_row + start + head * width;
    result[to] = rotated(from, place % context * rotary_row, number - head * width);
}
