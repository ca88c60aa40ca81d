#version 310 es
// Attention of new tokens over a part of the cached ones (flash decoding, Dao et al. 2023): a workgroup
// computes a token, a head of the cache and `keys` of its rows, for the GROUP heads of queries that read it.
// It steps along the keys by LANES, a key an invocation; then each invocation adds up four columns of some of
// the values for all queries, so that a row of the cache is read once. FETCHES loads are in flight at a time.
// With OWN_KEYS the first key of the first part is the token itself, whose key and value are in x.
#ifndef LANES
#define LANES 128
#endif
#ifndef GROUP
#define GROUP 4
#endif
#ifndef ROOM
#define ROOM 512
#endif
#ifndef FETCHES
#define FETCHES 1
#endif
#ifndef HAS_ROTARY
#define HAS_ROTARY 0
#endif
#ifndef OWN_KEYS
#define OWN_KEYS 0
#endif
#include "common/launch.glsl"
#include "common/barrier.glsl"
#include "common/nan.glsl"
#include "common/capped.glsl"
layout(local_size_x = LANES) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 1) buffer Cache { vec4 cache[]; };
layout(std430, binding = 2) buffer Places { int places[]; };
layout(std430, binding = 3) buffer Out { vec4 result[]; };
#if HAS_ROTARY
layout(std430, binding = 4) buffer Rotary { float rotary[]; };
#endif
uniform int heads, kv_heads, width, context, start, rows, group, window, keys, parts;
uniform int x_row, rotary_row, out_row;
#if OWN_KEYS
uniform int keys_start, values_start;
shared vec4 own_key[ROOM / 4];
#endif
uniform float scale;
#define NUMBER(head, i) x[(head) + (i)]
#define TABLE(row, i) rotary[(row) + (i)]
#include "common/rotary.glsl"
shared vec4 queries[ROOM / 4];         // of the group's heads
shared float weights[GROUP * LANES];   // of the keys of a step
shared float scratch[GROUP * LANES];    // for maxima and sums over lanes
shared float maximum[GROUP], weight_sum[GROUP], rescale[GROUP];
shared vec4 joined[LANES];

// Reduces the numbers of all lanes in `scratch` to their maximum or sum, for each of `count` queries.
void reduce_scratch(int lane, int count, bool is_maximum) {
    for (int step = LANES / 2; step > 0; step /= 2) {
        workgroup_barrier();
        if (lane < step)
            for (int query = 0; query < count; ++query) {
                int index = query * LANES + lane;
                float other = scratch[index + step];
                scratch[index] = is_maximum ? greater(scratch[index], other) : scratch[index] + other;
            }
    }
    workgroup_barrier();
}

// Attention of `count` heads of queries from `head` on, which read the head `kv_head` of the cache.
void attend(int token, int part, int kv_head, int head, int count) {
    int lane = int(gl_LocalInvocationID.x), quads = width / 4, across = LANES / quads;
    int place = places[token];
    bool is_valid = place >= 0 && place < rows;
    int position = is_valid ? place % context : 0;
    for (int i = lane; i < count * quads; i += LANES) {
        int query = i / quads, quad = i - query * quads;
        int from = token * x_row + start + (head + query) * width;
        for (int j = 0; j < 4; ++j)
            queries[i][j] = rotated(from, position * rotary_row, 4 * quad + j);
    }
    if (lane < GROUP) {
        maximum[lane] = -3.0e38;
        weight_sum[lane] = 0.0;
    }
    int visible = is_valid ? min(position + 1, window) : 0;  // keys that the token attends to
    int cached = visible;
    int first = place - visible + 1, row = 2 * kv_heads * quads;
    int quad = lane % quads, slice = lane / quads;
    vec4 sums[GROUP];
    for (int query = 0; query < GROUP; ++query) sums[query] = vec4(0.0);
#if OWN_KEYS
    cached = max(visible - 1, 0);
    if (part == 0 && is_valid) {
        int kv_offset = token * x_row + kv_head * width;
        for (int i = lane; i < quads; i += LANES)
            for (int j = 0; j < 4; ++j)
                own_key[i][j] = rotated(kv_offset + keys_start, position * rotary_row, 4 * i + j);
        workgroup_barrier();  // for the queries, too
        if (lane < count) {
            vec4 products = vec4(0.0);
            for (int i = 0; i < quads; ++i) products += queries[lane * quads + i] * own_key[i];
            maximum[lane] = capped(dot(products, vec4(1.0)) * scale);
            weight_sum[lane] = 1.0;
        }
        int own_value = kv_offset + values_start + 4 * quad;
        if (slice == 0)
            for (int query = 0; query < GROUP; ++query)
                sums[query] = vec4(x[own_value], x[own_value + 1], x[own_value + 2], x[own_value + 3]);
    }
#endif
    int end = min(cached, (part + 1) * keys);
    for (int step_key = part * keys; step_key < end; step_key += LANES) {
        workgroup_barrier();
        bool has_key = step_key + lane < end;
        int key = (first + (has_key ? step_key + lane : step_key)) * row + kv_head * quads;
        vec4 scores[GROUP];
        for (int query = 0; query < GROUP; ++query) scores[query] = vec4(0.0);
        for (int i = 0; i < quads; i += FETCHES) {
            vec4 loaded[FETCHES];
            for (int j = 0; j < FETCHES; ++j) loaded[j] = cache[key + min(i + j, quads - 1)];
            for (int j = 0; j < FETCHES; ++j)
                for (int query = 0; query < GROUP; ++query)
                    if (query < count && i + j < quads)
                        scores[query] += queries[query * quads + i + j] * loaded[j];
        }
        for (int query = 0; query < GROUP; ++query)
            if (query < count) {
                float score = has_key ? capped(dot(scores[query], vec4(1.0)) * scale) : -3.0e38;
                weights[query * LANES + lane] = score;
                scratch[query * LANES + lane] = score;
            }
        reduce_scratch(lane, count, true);
        if (lane < count) {
            float new_maximum = greater(maximum[lane], scratch[lane * LANES]);
            rescale[lane] = exp(maximum[lane] - new_maximum);
            maximum[lane] = new_maximum;
        }
        workgroup_barrier();
        for (int query = 0; query < count; ++query) {
            int index = query * LANES + lane;
            float weight = has_key ? exp(weights[index] - maximum[query]) : 0.0;
            weights[index] = weight;
            scratch[index] = weight;
        }
        reduce_scratch(lane, count, false);
        if (lane < count) weight_sum[lane] = weight_sum[lane] * rescale[lane] + scratch[lane * LANES];
        for (int query = 0; query < GROUP; ++query)
            if (query < count) sums[query] *= rescale[query];
        int step_keys = min(LANES, end - step_key);
        int value = (first + step_key) * row + (kv_heads + kv_head) * quads + quad;
        if (slice < across)
            for (int i = slice; i < step_keys; i += FETCHES * across) {
                vec4 loaded[FETCHES];
                for (int j = 0; j < FETCHES; ++j)
                    loaded[j] = cache[value + min(i + j * across, step_keys - 1) * row];
                for (int j = 0; j < FETCHES; ++j)
                    for (int query = 0; query < GROUP; ++query)
                        if (query < count && i + j * across < step_keys)
                            sums[query] += weights[query * LANES + i + j * across] * loaded[j];
            }
    }
    for (int query = 0; query < GROUP; ++query) {
        workgroup_barrier();
        joined[lane] = sums[query];
        workgroup_barrier();
        int target = token * (out_row / 4) + ((head + query) * parts + part) * (quads + 1);
        if (query < count && lane < quads) {
            vec4 sum = joined[lane];
            for (int i = 1; i < across; ++i) sum += joined[lane + i * quads];
            result[target + lane] = sum;
        }
        if (query < count && lane == 0)
            result[target + quads] = vec4(maximum[query], weight_sum[query], is_valid ? 1.0 : 0.0, 0.0);
    }
}

void main() {
    int groups = (group + GROUP - 1) / GROUP, all = int(WORKGROUP_ID.y), both = int(WORKGROUP_ID.z);
    int kv_head = all / groups, first = (all - kv_head * groups) * GROUP;
    int last = min(first + GROUP, group), fitting = min(GROUP, ROOM / width);
    for (int head = first; head < last; head += fitting) {
        if (head > first) workgroup_barrier();  // others may still read shared memory for the former heads
        attend(both / parts, both % parts, kv_head, kv_head * group + head, min(fitting, last - head));
    }
}
