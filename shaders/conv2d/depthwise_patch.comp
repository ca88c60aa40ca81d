#version 310 es
// Every channel by itself, channels last: patches of PX by PY pixels of four channels an invocation.
// What their windows meet of a row of x is loaded at once, and serves all taps of all rows of the
// patch, so that large windows load little. NVIDIA's compiler does not unroll loops of so much text
// and keeps arrays that these index in memory: what is done to each column, tap and pixel is called
// in the text.
#ifndef WG_X
#define WG_X 64
#endif
#ifndef PX
#define PX 7
#endif
#ifndef PY
#define PY 2
#endif
#include "common/launch.glsl"
#include "conv2d/nhwc.glsl"
#include "conv2d/line.glsl"
layout(local_size_x = WG_X) in;
#if PX > 8 || PY > 2 || KERNEL_W > 7
#error PX must be 8 at most, PY 2, and windows 7 wide
#endif
#define EACH_OF_8(call) \
    call(0) call(1) call(2) call(3) call(4) call(5) call(6) call(7)

vec4 line[16], sum[16];
int image, quad, quads, start, tap, left;  // of the patch; of the row, and its first tap, in hand

#define LOAD(i) if (i < PX - 1 + KERNEL_W) line[i] = met_at(start, left + i, quad, image);
#define LOAD_MORE(i) \
    if (i + 8 < PX - 1 + KERNEL_W) line[i + 8] = met_at(start, left + i + 8, quad, image);
#define ADD(p, kx, row) if (p < PX) sum[row * 8 + p] += line[p + kx] * weights;
#define TAP(kx, row) \
    if (kx < KERNEL_W) { \
        vec4 weights = WEIGHT(tap + kx * quads); \
        ADD(0, kx, row) ADD(1, kx, row) ADD(2, kx, row) ADD(3, kx, row) \
        ADD(4, kx, row) ADD(5, kx, row) ADD(6, kx, row) ADD(7, kx, row) \
    }
#define TAPS(row) \
    TAP(0, row) TAP(1, row) TAP(2, row) TAP(3, row) TAP(4, row) TAP(5, row) TAP(6, row)
#define FINISH(p) if (p < PX && column + p < ow) finish(sum[p], y * ow + column + p, quad);
#define FINISH_BELOW(p) \
    if (p < PX && column + p < ow) finish(sum[8 + p], (y + 1) * ow + column + p, quad);

// The patch whose first pixel is in that column of row `down` of the image.
void convolve(int down, int column) {
    int top = down - PADDING_TOP;
    left = column - PADDING_LEFT;
    for (int i = 0; i < 16; ++i) sum[i] = vec4(0.0);
    int first = max(-top, 0), last = min(KERNEL_H + PY - 1, h - top);
    start = (image * h + top + first) * w;
    tap = first * KERNEL_W * quads + quad;
    for (int row = first; row < last; ++row) {
        EACH_OF_8(LOAD)
        EACH_OF_8(LOAD_MORE)
        if (row < KERNEL_H) { TAPS(0) }
#if PY > 1
        tap -= KERNEL_W * quads;
        if (row > 0) { TAPS(1) }
        tap += KERNEL_W * quads;
#endif
        start += w;
        tap += KERNEL_W * quads;
    }
    int y = image * oh + down;
    EACH_OF_8(FINISH)
#if PY > 1
    if (down + 1 < oh) { EACH_OF_8(FINISH_BELOW) }
#endif
}

void main() {
    quads = (c + 3) / 4;
    int group = int(INVOCATION_ID.x) / quads;
    quad = int(INVOCATION_ID.x) - group * quads;
    if (group * PX >= ow) return;
    int high = (oh + PY - 1) / PY;
    for (int y = int(WORKGROUP_ID.y); y < n * high; y += int(WORKGROUP_COUNT.y)) {
        image = y / high;
        convolve((y - image * high) * PY, group * PX);
    }
}
