#version 310 es
// A row, or a part of one, a workgroup. It keeps the k first numbers seen so far in order, and behind
// them those that may be among them; when there is no room for more, all are sorted by a bitonic
// network (Batcher 1968). Whatever is not before the last of the k is left out as it is read.
#ifndef LANES
#define LANES 128
#endif
#ifndef ROOM
#define ROOM 256
#endif
#ifndef FETCHES
#define FETCHES 4
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "top_k/order.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { int x[]; };
layout(std430, binding = 1) buffer Out { int result[]; };
#if HAS_PLACES
layout(std430, binding = 2) buffer Places { int places[]; };
#endif
uniform int sample_rows, lines, n, m, k, parts, x_row, places_row;

struct Number {
    int key;
    int place;
};
#define NONE Number(-0x7fffffff - 1, 0x7fffffff)
shared Number kept[ROOM];
shared int taken;
int lane, filled, row_at, places_at;  // filled: the numbers behind the k first ones

bool before(Number a, Number b) {
    return a.key > b.key || (a.key == b.key && a.place < b.place);
}

Number number_at(int i) {
#if HAS_PLACES
    int place = places[places_at + i];
#else
    int place = i;
#endif
    return Number(key_of(x[row_at + place]), place);
}

void sort() {
    workgroup_barrier();
    int size = 2;
    while (size < k + filled) size *= 2;
    for (int i = k + filled + lane; i < size; i += LANES) kept[i] = NONE;
    for (int run = 2; run <= size; run *= 2) {
        for (int apart = run / 2; apart > 0; apart /= 2) {
            workgroup_barrier();
            for (int i = lane; i < size / 2; i += LANES) {
                int low = 2 * i - (i & (apart - 1)), high = low + apart;
                Number a = kept[low], b = kept[high];
                if (before(b, a) == ((low & run) == 0)) {
                    kept[low] = b;
                    kept[high] = a;
                }
            }
        }
    }
    if (lane == 0) taken = 0;
    workgroup_barrier();
    filled = 0;
}

void select(int line) {
    int row = line / parts, part = line - row * parts;
    int image = row / sample_rows, in_image = row - image * sample_rows;
    row_at = image * x_row + in_image * n;
#if HAS_PLACES
    places_at = image * places_row + in_image * m;
#endif
    int length = m / parts, rest = m - length * parts;
    int begin = part * length + min(part, rest), end = begin + length + (part < rest ? 1 : 0);
    workgroup_barrier();  // others may still read what was there for the line before
    for (int i = lane; i < k; i += LANES) kept[i] = NONE;
    if (lane == 0) taken = 0;
    filled = 0;
    workgroup_barrier();
    for (; begin < end; begin += LANES * FETCHES) {
        Number own[FETCHES];
        Number last = kept[k - 1];
        int count = 0;
        for (int j = 0; j < FETCHES; ++j) {
            int i = begin + j * LANES + lane;
            own[j] = number_at(min(i, end - 1));
            if (i >= end) own[j] = NONE;
            count += before(own[j], last) ? 1 : 0;
        }
        int to = count > 0 ? atomicAdd(taken, count) : 0;
        workgroup_barrier();
        int all = taken;
        workgroup_barrier();
        if (k + all <= ROOM) {
            for (int j = 0; j < FETCHES; ++j)
                if (before(own[j], last)) kept[k + to++] = own[j];
            filled = all;
            continue;
        }
        if (lane == 0) taken = filled;
        workgroup_barrier();
        for (int j = 0; j < FETCHES; ++j) {  // more than there is room for: one a lane at a time
            if (k + filled + LANES > ROOM) sort();
            if (before(own[j], kept[k - 1])) kept[k + atomicAdd(taken, 1)] = own[j];
            workgroup_barrier();
            filled = taken;
            workgroup_barrier();
        }
    }
    sort();
    for (int i = lane; i < k; i += LANES) result[line * k + i] = kept[i].place;
}

void main() {
    lane = int(gl_LocalInvocationID.x);
    for (int line = int(WORKGROUP_ID.y); line < lines; line += int(WORKGROUP_COUNT.y)) select(line);
}
