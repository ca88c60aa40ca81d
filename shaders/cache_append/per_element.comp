#version 310 es
// A cache with a token more: an element an invocation, a head of a sequence a row of workgroups.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef HAS_ROTARY
#define HAS_ROTARY 0
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Past { float past[]; };
#if HAS_ROTARY
layout(std430, binding = 3) buffer Places { int places[]; };
layout(std430, binding = 4) buffer Table { float rotary[]; };
#endif
layout(std430, binding = 2) buffer Out { float result[]; };
uniform int heads, width, context, start, elements, matrices, x_row, rotary_row;
#define NUMBER(head, i) x[(head) + (i)]
#define TABLE(row, i) rotary[(row) + (i)]
#include "common/rotary.glsl"

void main() {
    int element = int(INVOCATION_ID.x), matrix = int(INVOCATION_ID.y), before = elements - width;
    if (element >= elements || matrix >= matrices) return;
    if (element < before) {
        result[matrix * elements + element] = past[matrix * before + element];
        return;
    }
    int row = matrix / heads, from = row * x_row + start + (matrix - row * heads) * width;
#if HAS_ROTARY
    int angles = max(places[row], 0) % context * rotary_row;
#else
    const int angles = 0;
#endif
    result[matrix * elements + element] = rotated(from, angles, element - before);
}
