#version 310 es
// Attention of new tokens over the cached ones (Milakov and Gimelshein 2018: the softmax in one pass).
// A workgroup computes a token and a head of the cache, for the GROUP heads of queries that read it: it steps
// along the keys by LANES, a key an invocation; then each invocation adds up columns of values.
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
#include "common/barrier.glsl"
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
shared float weights[GROUP * LANES];   // of the keys of a step
shared float scratch[GROUP * LANES];    // for maxima and sums over lanes
shared float maximum[GROUP], weight_sum[GROUP], rescale[GROUP];

float score(int query, int key) {
    float sum = 0.0;
    for (int i = 0; i < width; ++i) sum += queries[query * width + i] * cache[key + i];
    return capped(sum * scale);
}

// Attention of `count` heads of queries from `head` on, which read the head `kv_head` of the cache.
void attend(int token, int kv_head, int head, int count) {
    int lane = int(gl_LocalInvocationID.x);
    int place = places[token];
    bool is_valid = place >= 0 && place < rows;
    int position = is_valid ? place % context : 0;
    for (int i = lane; i < count * width; i += LANES) {
        int query = i / width, number = i - query * width;
        int from = token * x_row + start + (head + query) * width;
        queries[i] = rotated(from, position * rotary_row, number);
        sums[i] = 0.0;
    }
    if (lane < GROUP) {
        maximum[lane] = -3.0e38;
        weight_sum[lane] = 0.0;
    }
    int visible = is_valid ? min(position + 1, window) : 0;  // keys that the token attends to
    int first = place - visible + 1, row = 2 * kv_heads * width;
    for (int step_key = 0; step_key < visible; step_key += LANES) {
        workgroup_barrier();
        int key = (first + min(step_key + lane, visible - 1)) * row + kv_head * width;
        for (int query = 0; query < count; ++query) {
            float key_score = step_key + lane < visible ? score(query, key) : -3.0e38;
            weights[query * LANES + lane] = key_score;
            scratch[query * LANES + lane] = key_score;
        }
        for (int step = LANES / 2; step > 0; step /= 2) {
            workgroup_barrier();
            if (lane < step)
                for (int query = 0; query < count; ++query) {
                    int index = query * LANES + lane;
                    scratch[index] = greater(scratch[index], scratch[index + step]);
                }
        }
        workgroup_barrier();
        if (lane < count) {
            float new_maximum = greater(maximum[lane], scratch[lane * LANES]);
            rescale[lane] = exp(maximum[lane] - new_maximum);
            maximum[lane] = new_maximum;
        }
        workgroup_barrier();
        for (int query = 0; query < count; ++query) {
            int index = query * LANES + lane;
            float weight = step_key + lane < visible ? exp(weights[index] - maximum[query]) : 0.0;
            weights[index] = weight;
            scratch[index] = weight;
        }
        for (int step = LANES / 2; step > 0; step /= 2) {
            workgroup_barrier();
            if (lane < step)
                for (int query = 0; query < count; ++query)
                    scratch[query * LANES + lane] += scratch[query * LANES + lane + step];
        }
        workgroup_barrier();
        if (lane < count) weight_sum[lane] = weight_sum[lane] * rescale[lane] + scratch[lane * LANES];
        int step_keys = min(LANES, visible - step_key);
        for (int i = lane; i < count * width; i += LANES) {
            int query = i / width, column = i - query * width;
            float sum = sums[i] * rescale[query];
            int value = (first + step_key) * row + (kv_heads + kv_head) * width + column;
            for (int j = 0; j < step_keys; ++j) sum += weights[query * LANES + j] * cache[value + j * row];
            sums[i] = sum;
        }
    }
    workgroup_barrier();
    for (int i = lane; i < count * width; i += LANES) {
        int query = i / width;
        float divisor = weight_sum[query];
        result[token * out_row + head * width + i] = visible > 0 ? sums[i] / divisor : 0.0;
    }
}

void main() {
    int groups = (group + GROUP - 1) / GROUP, all = int(WORKGROUP_ID.y);
    int kv_head = all / groups, first = (all - kv_head * groups) * GROUP;
    int last = min(first + GROUP, group), fitting = min(GROUP, ROOM / width);
    for (int head = first; head < last; head += fitting) {
        if (head > first) workgroup_barrier();  // others may still read shared memory for the former heads
        attend(int(WORKGROUP_ID.z), kv_head, kv_head * group + head, min(fitting, last - head));
    }
}
