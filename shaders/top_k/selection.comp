#version 310 es
// A workgroup for a row or a part of one. Shared memory has the k first numbers so far in order, and
// behind them pending ones; when it is full, all are sorted by a bitonic network (Batcher 1968). A
// number that does not precede the last of the k is dropped as it is read.
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
shared Number candidates[ROOM];
shared int pending_count;
int lane, pending, row_begin, places_begin;  // pending: numbers behind the k first ones

bool precedes(Number a, Number b) {
    return a.key > b.key || (a.key == b.key && a.place < b.place);
}

Number number_at(int i) {
#if HAS_PLACES
    int place = places[places_begin + i];
#else
    int place = i;
#endif
    return Number(key_of(x[row_begin + place]), place);
}

void sort() {
    workgroup_barrier();
    int size = 2;
    while (size < k + pending) size *= 2;
    for (int i = k + pending + lane; i < size; i += LANES) candidates[i] = NONE;
    for (int run = 2; run <= size; run *= 2) {
        for (int distance = run / 2; distance > 0; distance /= 2) {
            workgroup_barrier();
            for (int i = lane; i < size / 2; i += LANES) {
                int low = 2 * i - (i & (distance - 1)), high = low + distance;
                Number a = candidates[low], b = candidates[high];
                if (precedes(b, a) == ((low & run) == 0)) {
                    candidates[low] = b;
                    candidates[high] = a;
                }
            }
        }
    }
    if (lane == 0) pending_count = 0;
    workgroup_barrier();
    pending = 0;
}

void select(int line) {
    int row = line / parts, part = line - row * parts;
    int image = row / sample_rows, in_image = row - image * sample_rows;
    row_begin = image * x_row + in_image * n;
#if HAS_PLACES
    places_begin = image * places_row + in_image * m;
#endif
    int length = m / parts, remainder = m - length * parts;
    int begin = part * length + min(part, remainder), end = begin + length + (part < remainder ? 1 : 0);
    workgroup_barrier();  // others may still read the candidates of the line before
    for (int i = lane; i < k; i += LANES) candidates[i] = NONE;
    if (lane == 0) pending_count = 0;
    pending = 0;
    workgroup_barrier();
    for (; begin < end; begin += LANES * FETCHES) {
        Number own[FETCHES];
        Number last = candidates[k - 1];
        int count = 0;
        for (int j = 0; j < FETCHES; ++j) {
            int i = begin + j * LANES + lane;
            own[j] = number_at(min(i, end - 1));
            if (i >= end) own[j] = NONE;
            count += precedes(own[j], last) ? 1 : 0;
        }
        int slot = count > 0 ? atomicAdd(pending_count, count) : 0;
        workgroup_barrier();
        int new_pending = pending_count;
        workgroup_barrier();
        if (k + new_pending <= ROOM) {
            for (int j = 0; j < FETCHES; ++j)
                if (precedes(own[j], last)) candidates[k + slot++] = own[j];
            pending = new_pending;
            continue;
        }
        if (lane == 0) pending_count = pending;
        workgroup_barrier();
        for (int j = 0; j < FETCHES; ++j) {  // more than fit: one of each lane at a time
            if (k + pending + LANES > ROOM) sort();
            if (precedes(own[j], candidates[k - 1])) candidates[k + atomicAdd(pending_count, 1)] = own[j];
            workgroup_barrier();
            pending = pending_count;
            workgroup_barrier();
        }
    }
    sort();
    for (int i = lane; i < k; i += LANES) result[line * k + i] = candidates[i].place;
}

void main() {
    lane = int(gl_LocalInvocationID.x);
    for (int line = int(WORKGROUP_ID.y); line < lines; line += int(WORKGROUP_COUNT.y)) select(line);
}
