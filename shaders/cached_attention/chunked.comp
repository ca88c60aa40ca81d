#version 310 es
// Attention of new tokens over the cached ones: a token and a head of queries a workgroup. SPLIT invocations
// a key compute the scores of CHUNK keys to shared memory, where they become weights, exp(score - maximum);
// then each invocation adds up four columns of some of the values. FETCHES loads are in flight at a time,
// those of the first values while the scores are computed. Longer sequences continue with the maximum so far
// (Milakov and Gimelshein 2018). With OWN_KEYS the first key is the token itself, whose key and value are in
// x.
#ifndef LANES
#define LANES 128
#endif
#ifndef CHUNK
#define CHUNK 1024
#endif
#ifndef ROOM
#define ROOM 512
#endif
#ifndef FETCHES
#define FETCHES 1
#endif
#ifndef SPLIT
#define SPLIT 1
#endif
#ifndef HAS_ROTARY
#define HAS_ROTARY 0
#endif
#ifndef OWN_KEYS
#define OWN_KEYS 0
#endif
#ifndef SUBGROUP_SIZE
#define SUBGROUP_SIZE 0
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
uniform int heads, kv_heads, width, context, start, rows, group, window;
uniform int x_row, rotary_row, out_row;
#if OWN_KEYS
uniform int keys_start, values_start;
shared vec4 own_key[ROOM / 4];
#endif
uniform float scale;
#define NUMBER(head, i) x[(head) + (i)]
#define TABLE(row, i) rotary[(row) + (i)]
#include "common/rotary.glsl"
shared vec4 query[ROOM / 4];
shared float weights[CHUNK];
shared float scratch[LANES];
shared vec4 sums[LANES];

// The dot product of the query and a key, of every SPLIT-th vec4 from `first` on.
float products(int key, int first) {
    vec4 sum = vec4(0.0);
    int quads = width / 4;
    for (int i = first; i < quads; i += FETCHES * SPLIT) {
        vec4 loaded[FETCHES];
        for (int j = 0; j < FETCHES; ++j) loaded[j] = cache[key + min(i + j * SPLIT, quads - 1)];
        for (int j = 0; j < FETCHES; ++j)
            if (i + j * SPLIT < quads) sum += query[i + j * SPLIT] * loaded[j];
    }
    return dot(sum, vec4(1.0));
}

// The maximum of all invocations' numbers.
float maximum_of_all(int lane, float number) {
#if SUBGROUP_SIZE
    number = subgroupMax(number);  // may ignore a NaN, whose weight is NaN anyway
    if (subgroupElect()) scratch[gl_SubgroupID] = number;
    workgroup_barrier();
    for (uint i = 0u; i < gl_NumSubgroups; ++i) number = max(number, scratch[i]);
    return number;
#else
    scratch[lane] = number;
    for (int step = LANES / 2; step > 0; step /= 2) {
        workgroup_barrier();
        if (lane < step) scratch[lane] = greater(scratch[lane], scratch[lane + step]);
    }
    workgroup_barrier();
    return scratch[0];
#endif
}

void main() {
    int lane = int(gl_LocalInvocationID.x), head = int(WORKGROUP_ID.y), token = int(WORKGROUP_ID.z);
    int place = places[token], quads = width / 4, across = LANES / quads;
    bool is_valid = place >= 0 && place < rows;
    int position = is_valid ? place % context : 0, from = token * x_row + start + head * width;
    for (int i = lane; i < quads; i += LANES)
        for (int j = 0; j < 4; ++j)
            query[i][j] = rotated(from, position * rotary_row, 4 * i + j);
    int visible = is_valid ? min(position + 1, window) : 0;  // keys that the token attends to
    int cached_keys = visible, first_row = place - visible + 1;
    int row = 2 * kv_heads * quads, keys = first_row * row + head / group * quads;
    int quad = lane % quads, part = lane / quads, values = keys + kv_heads * quads + quad;
    float maximum = -3.0e38, weight_sum = 0.0;
    vec4 sum = vec4(0.0);
#if OWN_KEYS
    int kv_offset = token * x_row + head / group * width;
    for (int i = lane; i < quads; i += LANES)
        for (int j = 0; j < 4; ++j)
            own_key[i][j] = rotated(kv_offset + keys_start, position * rotary_row, 4 * i + j);
    workgroup_barrier();
    vec4 product = vec4(0.0);
    for (int i = 0; i < quads; ++i) product += query[i] * own_key[i];
    maximum = capped(dot(product, vec4(1.0)) * scale);
    if (part == 0) {
        int own_value = kv_offset + values_start + 4 * quad;
        sum = vec4(x[own_value], x[own_value + 1], x[own_value + 2], x[own_value + 3]);
        weight_sum = 1.0;
    }
    cached_keys = max(visible - 1, 0);
#else
    workgroup_barrier();
#endif
    for (int first = 0; first < cached_keys; first += CHUNK) {
        int count = min(CHUNK, cached_keys - first);
        vec4 loaded[FETCHES];
        if (part < across)
            for (int j = 0; j < FETCHES; ++j)
                loaded[j] = cache[values + (first + min(part + j * across, count - 1)) * row];
        float chunk_maximum = -3.0e38;
        for (int base = 0; base < count; base += LANES / SPLIT) {
            int key = base + lane / SPLIT;
            float score = key < count ? products(keys + (first + key) * row, lane % SPLIT) : 0.0;
#if SPLIT > 1
            workgroup_barrier();  // others may still read the former keys' products
            scratch[lane] = score;
            workgroup_barrier();
            key = lane < LANES / SPLIT ? base + lane : count;
            score = 0.0;
            for (int i = 0; i < SPLIT; ++i) score += scratch[(lane * SPLIT + i) % LANES];
#endif
            if (key < count) {
                score = capped(score * scale);
                weights[key] = score;
                chunk_maximum = greater(chunk_maximum, score);
            }
        }
#if SPLIT > 1
        workgroup_barrier();
#endif
        float new_maximum = greater(maximum, maximum_of_all(lane, chunk_maximum));
        float rescale = exp(maximum - new_maximum);
        maximum = new_maximum;
        for (int i = lane; i < count; i += LANES) weights[i] = exp(weights[i] - new_maximum);
        workgroup_barrier();
        sum *= rescale;
        weight_sum *= rescale;
        if (part < across)
            for (int i = part; i < count; i += FETCHES * across) {
                if (i > part)
                    for (int j = 0; j < FETCHES; ++j)
                        loaded[j] = cache[values + (first + min(i + j * across, count - 1)) * row];
                for (int j = 0; j < FETCHES; ++j)
                    if (i + j * across < count) {
                        sum += weights[i + j * across] * loaded[j];
                        weight_sum += weights[i + j * across];
                    }
            }
        workgroup_barrier();  // the next keys' scores overwrite these
    }
    sums[lane] = sum;
    scratch[lane] = weight_sum;
    workgroup_barrier();
    if (lane < quads) {
        for (int i = 1; i < across; ++i) {
            sum += sums[lane + i * quads];
            weight_sum += scratch[lane + i * quads];
        }
        result[(token * out_row + head * width) / 4 + lane] = visible > 0 ? sum / weight_sum : vec4(0.0);
    }
}
