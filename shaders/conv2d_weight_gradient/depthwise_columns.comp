#version 310 es
// A depthwise convolution's gradient by its weight, channels last: the LANES invocations of a workgroup that
// compute the same channel share the columns and rows of a part of dy, and slide down PX columns of ROWS rows
// each. The sums of all taps, and the rows of dy that a row of x is multiplied by, stay in registers, so that
// each number is loaded once; the sums of the lanes are added in shared memory. NVIDIA's compiler does not
// unroll loops of so much code, and keeps arrays that such loops index in memory: so macros write out the work
// for each column and tap.
#ifndef CHANNELS
#define CHANNELS 32
#endif
#ifndef LANES
#define LANES 4
#endif
#ifndef PX
#define PX 7
#endif
#ifndef ROWS
#define ROWS 7
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "common/window.glsl"
layout(local_size_x = CHANNELS, local_size_y = LANES) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Dy { float dy[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
uniform int n, c, h, w, oh, ow, chunk;
#if PX > 8 || KERNEL_H > 7 || KERNEL_W > 7 || STRIDE_H > 2 || STRIDE_W > 2
#error PX must be 8 at most, windows 7 x 7 and strides 2
#endif
#ifndef TAPS
#define TAPS (KERNEL_H * KERNEL_W)
#endif
#define COLUMNS ((PX - 1) * STRIDE_W + KERNEL_W)
#define DY_ROWS ((KERNEL_H + STRIDE_H - 1) / STRIDE_H)  // that a row of x is multiplied by

#define EACH_OF_7(call) call(0) call(1) call(2) call(3) call(4) call(5) call(6)
#define EACH_OF_8(call) EACH_OF_7(call) call(7)
#define EACH_OF_7_OF(call, a) \
    call(0, a) call(1, a) call(2, a) call(3, a) call(4, a) call(5, a) call(6, a)

// dy_rows[8 * i + p] is dy at pixel p, i rows above the newest row.
float sum[49 * STRIDE_H], dy_rows[56], dy_loaded[8], line[24], loaded[24];
int offset[24], dy_offset[8];  // of each column in a row
int channel, pitch, image, column, left, row;  // row: of x, the next one
shared float sums[CHANNELS * LANES];

// Unconditional: a load that depends on a condition is waited for before the next is issued.
#define PLACE(i) if (i < COLUMNS) offset[i] = clamp(left + i, 0, w - 1) * pitch + channel;
#define PLACE_8(i) PLACE(i + 8)
#define PLACE_16(i) PLACE(i + 16)
#define PLACE_DY(p) if (p < PX) dy_offset[p] = min(column + p, ow - 1) * pitch + channel;
#define LOAD(i) if (i < COLUMNS) loaded[i] = x[start + offset[i]];
#define LOAD_8(i) LOAD(i + 8)
#define LOAD_16(i) LOAD(i + 16)
#define LOAD_DY(p) if (p < PX) dy_loaded[p] = dy[start + dy_offset[p]];
#define COPY(i) if (i < COLUMNS) line[i] = uint(left + i) < uint(w) ? loaded[i] : 0.0;
#define COPY_8(i) COPY(i + 8)
#define COPY_16(i) COPY(i + 16)

void load() {
    int start = (image * h + clamp(row, 0, h - 1)) * w * pitch;
    EACH_OF_8(LOAD) EACH_OF_8(LOAD_8) EACH_OF_8(LOAD_16)
}

void load_dy(int y) {
    int start = (image * oh + min(y, oh - 1)) * ow * pitch;
    EACH_OF_8(LOAD_DY)
}

// Copies the next row of x to `line` and loads the one after it. Returns whether the row is inside.
bool next_row() {
    EACH_OF_8(COPY) EACH_OF_8(COPY_8) EACH_OF_8(COPY_16)
    bool inside = row >= 0 && row < h;
    ++row;
    load();
    return inside;
}

#define CLEAR(kx, ky) sum[ky * 7 + kx] = 0.0;
#define CLEAR_ROW(ky) EACH_OF_7_OF(CLEAR, ky)
#define FORGET(p) \
    dy_rows[p] = dy_rows[8 + p] = dy_rows[16 + p] = dy_rows[24 + p] = dy_rows[32 + p] = dy_rows[40 + p] = 0.0; \
    dy_rows[48 + p] = 0.0;
#define MOVE(p) \
    dy_rows[48 + p] = dy_rows[40 + p]; dy_rows[40 + p] = dy_rows[32 + p]; dy_rows[32 + p] = dy_rows[24 + p]; \
    dy_rows[24 + p] = dy_rows[16 + p]; dy_rows[16 + p] = dy_rows[8 + p]; dy_rows[8 + p] = dy_rows[p]; \
    dy_rows[p] = y < bottom && column + p < ow ? dy_loaded[p] : 0.0;
#define ADD(p, i, at) if (p < PX) sum[at] += line[p * STRIDE_W + at % 7] * dy_rows[8 * i + p];
#define TAP(kx, i, ky) \
    if (kx < KERNEL_W) { \
        ADD(0, i, (ky * 7 + kx)) ADD(1, i, (ky * 7 + kx)) ADD(2, i, (ky * 7 + kx)) \
        ADD(3, i, (ky * 7 + kx)) ADD(4, i, (ky * 7 + kx)) ADD(5, i, (ky * 7 + kx)) \
        ADD(6, i, (ky * 7 + kx)) ADD(7, i, (ky * 7 + kx)) \
    }
#define EACH_TAP(i, ky) \
    TAP(0, i, ky) TAP(1, i, ky) TAP(2, i, ky) TAP(3, i, ky) TAP(4, i, ky) TAP(5, i, ky) TAP(6, i, ky)
// What the first and the second row of x of a step add, by the i-th row of dy before.
#define FIRST_ROW(i) if (i < DY_ROWS) { EACH_TAP(i, (i * STRIDE_H)) }
#define SECOND_ROW(i) if (i * STRIDE_H + 1 < KERNEL_H) { EACH_TAP(i, (i * 2 + 1)) }

// Adds what the rows of dy from `top` to before `bottom` give.
void add(int top, int bottom) {
    EACH_OF_8(FORGET)
    row = top * STRIDE_H - PADDING_TOP;
    load();
    load_dy(top);
    for (int y = top; y < bottom + DY_ROWS - 1; ++y) {
        EACH_OF_8(MOVE)
        load_dy(y + 1);
        if (next_row()) { EACH_OF_7(FIRST_ROW) }
#if STRIDE_H > 1
        if (next_row()) { EACH_OF_7(SECOND_ROW) }
#endif
    }
}

#define JOIN(kx, ky) \
    if (kx < KERNEL_W && ky < KERNEL_H) { \
        workgroup_barrier(); \
        sums[place] = sum[ky * 7 + kx]; \
        workgroup_barrier(); \
        if (lane == (ky * KERNEL_W + kx) % LANES && own < c) { \
            float whole = 0.0; \
            for (int i = 0; i < LANES; ++i) whole += sums[i * CHANNELS + int(gl_LocalInvocationID.x)]; \
            result[(part * c + channel) * TAPS + ky * KERNEL_W + kx] = whole; \
        } \
    }
#define JOIN_ROW(ky) EACH_OF_7_OF(JOIN, ky)

void main() {
    int lane = int(gl_LocalInvocationID.y), part = int(WORKGROUP_ID.z), own = int(INVOCATION_ID.x);
    channel = min(own, c - 1);
    pitch = (c + 3) / 4 * 4;
    int first = part * chunk, last = min(first + chunk, n * oh);  // rows of dy, of all images
    int groups = (ow + PX - 1) / PX, strips = (chunk + ROWS - 1) / ROWS;
    EACH_OF_7(CLEAR_ROW)
    for (int unit = lane; unit < groups * strips; unit += LANES) {
        int strip = unit / groups;
        column = (unit - strip * groups) * PX;
        left = column * STRIDE_W - PADDING_LEFT;
        EACH_OF_8(PLACE) EACH_OF_8(PLACE_8) EACH_OF_8(PLACE_16) EACH_OF_8(PLACE_DY)
        int end = min(first + (strip + 1) * ROWS, last);
        for (int begin = first + strip * ROWS; begin < end;) {  // of one image at a time
            image = begin / oh;
            int top = begin - image * oh, bottom = min(top + end - begin, oh);
            add(top, bottom);
            begin += bottom - top;
        }
    }
    int place = lane * CHANNELS + int(gl_LocalInvocationID.x);
    EACH_OF_7(JOIN_ROW)
}
