#version 310 es
// Rows of two or three inputs behind one another: four elements an invocation. A row is an image
// of planar layout or, channels last, a pixel; rows are padded to whole vec4s.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef CHANNELS_LAST
#define CHANNELS_LAST 0
#endif
#ifndef COUNT
#define COUNT 2
#define ROWS_ALIGNED 0
#define PIXELS_ALIGNED 0
#endif

#if CHANNELS_LAST
#define ROWS (n * inner)
#define EACH 1  // elements of a row to a channel
#define ALIGNED PIXELS_ALIGNED
#else
#define ROWS n
#define EACH inner
#define ALIGNED ROWS_ALIGNED
#endif
#if ALIGNED
#define ELEMENT vec4
#define WIDTH 4
#else
#define ELEMENT float
#define WIDTH 1
#endif

#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
layout(std430, binding = 0) buffer X0 { ELEMENT x0[]; };
layout(std430, binding = 1) buffer X1 { ELEMENT x1[]; };
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#if COUNT > 2
layout(std430, binding = 3) buffer X2 { ELEMENT x2[]; };
uniform int c2;
#endif
uniform int n, inner, c, c0, c1;

// Where a row of so many channels begins.
int start(int row, int channels) {
    return row * ((channels * EACH + 3) / 4) * (4 / WIDTH);
}

ELEMENT fetch(int row, int place) {
    int first = c0 * EACH / WIDTH, second = c1 * EACH / WIDTH;
    if (place < first) return x0[start(row, c0) + place];
    place -= first;
#if COUNT > 2
    if (place >= second) return x2[start(row, c2) + place - second];
#endif
    return x1[start(row, c1) + place];
}

void main() {
    int quads = (c * EACH + 3) / 4;
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < ROWS * quads; i += stride) {
        int row = i / quads;
        int quad = i - row * quads;
#if ALIGNED
        result[i] = fetch(row, quad);
#else
        vec4 value = vec4(0.0);
        for (int lane = 0; lane < 4; ++lane)
            if (quad * 4 + lane < c * EACH) value[lane] = fetch(row, quad * 4 + lane);
        result[i] = value;
#endif
    }
}
