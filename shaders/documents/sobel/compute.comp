#version 310 es
// Gronqvist's kernels (section 1.3): both gradients of WORDS words in ROWS rows an invocation.
#ifndef WG_X
#define WG_X 32
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef WORDS
#define WORDS 2
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef LOADS
#define LOADS 1
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
#if WORDS == 4
layout(std430, binding = 0) buffer X { uvec4 x[]; };
layout(std430, binding = 1) buffer Out { uvec4 result[]; };
#define LAST_AT(i) x[i].w
#elif WORDS == 2
layout(std430, binding = 0) buffer X { uvec2 x[]; };
layout(std430, binding = 1) buffer Out { uvec2 result[]; };
#define LAST_AT(i) x[i].y
#else
layout(std430, binding = 0) buffer X { uint x[]; };
layout(std430, binding = 1) buffer Out { uint result[]; };
#endif
#define CHARS_AT(i) x[i]
#define FIRST_AT(i) x[i].x
uniform int height, width, words;
#if WORDS == 1
#include "documents/sobel/char.glsl"
#else
#include "documents/sobel/rows.glsl"
#endif

void main() {
    int columns = words / WORDS;
    int column = int(INVOCATION_ID.x), top = int(INVOCATION_ID.y) * ROWS;
    if (column >= columns || top >= height) return;
    CHARS dx[ROWS], dy[ROWS];
    gradients(top, column, dx, dy);
    for (int i = 0; i < ROWS; ++i) {
        int at = (top + i) * columns + column;
        if (top + i < height) result[at] = dx[i];
        if (top + i < height) result[height * columns + at] = dy[i];
    }
}
