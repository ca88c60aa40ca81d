#version 310 es
// Attention of new tokens over the cached ones (Milakov and Gimelshein 2018: the softmax in one pass).
// A workgroup computes a token and a head of the cache, for the GROUP heads of queries that read it:
// keys are taken LANES at a time, a key an invocation; then each invocation adds up columns of values.
#ifndef LANES
#define LANES 64
#endif
#ifndef GROUP
#define GROUP 4
#endif
#ifndef ROOM
#define ROOM 1024
#endif
#ifndef HAS_ROTARY
#define HAS_ROTARY 0
#endif
#include "common/launch.glsl"
#include "common/wait.glsl"
#include "common/nan.glsl"
#include "common/capped.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Cache { float cache[]; };
layout(std430, binding = 2) buffer Places { int places[]; };
layout(std430, binding = 3) buffer Out { float result[]; };
#if HAS_ROTARY
layout(std430, binding = 4) buffer Rotary { float rotary[]; };
#endif
uniform int tokens, heads, kv_heads, width, context, start, rows, group, window;
uniform int x_row, rotary_row, out_row;
uniform float scale;
#define NUMBER(head, i) x[(head) + (i)]
#define TABLE(row, i) rotary[(row) + (i)]
#include "common/rotary.glsl"
shared float queries[ROOM];            // of the group's heads
shared float sums[ROOM];               // of values by weights
shared float weights[GROUP * LANES];   // of the keys at hand
shared float shares[GROUP * LANES];    // what the maxima and sums of lanes are joined by
shared float most[GROUP], total[GROUP], shrink[GROUP];

float score(int query, int key) {
    float sum = 0.0;
    for (int i = 0; i < width; ++i) sum += queries[query * width + i] * cache[key + i];
    return capped(sum * scale);
}

// Attention of `count` heads of queries from `head` on, which read the head `kv_head` of the cache.
void attend(int token, int kv_head, int head, int count) {
    int lane = int(gl_LocalInvocationID.x);
    int place = places[token];
    bool there = place >= 0 && place < rows;
    int position = there ? place % context : 0;
    for (int i = lane; i < count * width; i += LANES) {
        int query = i / width, number = i - query * width;
        int from = token * x_row + start + (head + query) * width;
        queries[i] = rotated(from, position * rotary_row, number);
        sums[i] = 0.0;
    }
    if (lane < GROUP) {
        most[lane] = -3.0e38;
        total[lane] = 0.0;
    }
    int seen = there ? min(position + 1, window) : 0;
    int first = place - seen + 1, row = 2 * kv_heads * width;
    for (int at = 0; at < seen; at += LANES) {
        wait();
        int key = (first + min(at + lane, seen - 1)) * row + kv_head * width;
        for (int query = 0; query < count; ++query) {
            float own = at + lane < seen ? score(query, key) : -3.0e38;
            weights[query * LANES + lane] = own;
            shares[query * LANES + lane] = own;
        }
        for (int step = LANES / 2; step > 0; step /= 2) {
            wait();
            if (lane < step)
                for (int query = 0; query < count; ++query) {
                    int own = query * LANES + lane;
                    shares[own] = greater(shares[own], shares[own + step]);
                }
        }
        wait();
        if (lane < count) {
            float now = greater(most[lane], shares[lane * LANES]);
            shrink[lane] = exp(most[lane] - now);
            most[lane] = now;
        }
        wait();
        for (int query = 0; query < count; ++query) {
            int own = query * LANES + lane;
            float power = at + lane < seen ? exp(weights[own] - most[query]) : 0.0;
            weights[own] = power;
            shares[own] = power;
        }
        for (int step = LANES / 2; step > 0; step /= 2) {
            wait();
            if (lane < step)
                for (int query = 0; query < count; ++query)
                    shares[query * LANES + lane] += shares[query * LANES + lane + step];
        }
        wait();
        if (lane < count) total[lane] = total[lane] * shrink[lane] + shares[lane * LANES];
        int keys_here = min(LANES, seen - at);
        for (int i = lane; i < count * width; i += LANES) {
            int query = i / width, column = i - query * width;
            float sum = sums[i] * shrink[query];
            int value = (first + at) * row + (kv_heads + kv_head) * width + column;
            for (int j = 0; j < keys_here; ++j) sum += weights[query * LANES + j] * cache[value + j * row];
            sums[i] = sum;
        }
    }
    wait();
    for (int i = lane; i < count * width; i += LANES) {
        int query = i / width;
        float divisor = total[query];
        result[token * out_row + head * width + i] = seen > 0 ? sums[i] / divisor : 0.0;
    }
}

void main() {
    int groups = (group + GROUP - 1) / GROUP, all = int(WORKGROUP_ID.y);
    int kv_head = all / groups, first = (all - kv_head * groups) * GROUP;
    int last = min(first + GROUP, group), fitting = min(GROUP, ROOM / width);
    for (int head = first; head < last; head += fitting) {
        if (head > first) wait();  // nobody reads shared memory for the heads before any more
        attend(int(WORKGROUP_ID.z), kv_head, kv_head * group + head, min(fitting, last - head));
    }
}
