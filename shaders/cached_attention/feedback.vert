#version 300 es
// Attention over the cache by transform feedback: a vertex computes four numbers of a head, and the
// scores of all tokens for them, the softmax on the way.
#ifndef CACHE_SAMPLER
#define CACHE_SAMPLER sampler2D
#endif
#ifndef PLACES_SAMPLER
#define PLACES_SAMPLER isampler2D
#endif
#include "common/texel.glsl"
#include "common/nan.glsl"
#include "common/capped.glsl"
uniform highp X_SAMPLER x;
uniform highp CACHE_SAMPLER cache;
uniform highp PLACES_SAMPLER places;
uniform int tokens, heads, kv_heads, width, context, start, rows, group, window, x_row, out_row;
uniform float scale;
out highp vec4 result;

// Values of a head from `column` on, weighted by the softmax of its scores. Eight products a turn:
// llvmpipe leaves loops after 65,535 turns, all of a vertex together.
vec4 attended(int token, int head, int column) {
    int place = texel(places, token).x;
    if (place < 0 || place >= rows) return vec4(0.0);
    int row = 2 * kv_heads * width, query = token * x_row + start + head * width;
    int key = head / group * width, value = (kv_heads + head / group) * width;
    ivec4 columns = value + clamp(column + ivec4(0, 1, 2, 3), 0, width - 1);
    int visible = min(place % context + 1, window);
    float maximum = -3.0e38, weight_sum = 0.0;
    vec4 sum = vec4(0.0);
    for (int at = place - visible + 1; at <= place; ++at) {
        int from = at * row + key, i = 0;
        float score = 0.0;
        for (; i + 8 <= width; i += 8)
            score += texel(x, query + i).x * texel(cache, from + i).x
                   + texel(x, query + i + 1).x * texel(cache, from + i + 1).x
                   + texel(x, query + i + 2).x * texel(cache, from + i + 2).x
                   + texel(x, query + i + 3).x * texel(cache, from + i + 3).x
                   + texel(x, query + i + 4).x * texel(cache, from + i + 4).x
                   + texel(x, query + i + 5).x * texel(cache, from + i + 5).x
                   + texel(x, query + i + 6).x * texel(cache, from + i + 6).x
                   + texel(x, query + i + 7).x * texel(cache, from + i + 7).x;
        for (; i < width; ++i) score += texel(x, query + i).x * texel(cache, from + i).x;
        score = capped(score * scale);
        float new_maximum = greater(maximum, score), rescale = exp(maximum - new_maximum);
        float weight = exp(score - new_maximum);
        weight_sum = weight_sum * rescale + weight;
        vec4 values = vec4(texel(cache, at * row + columns.x).x, texel(cache, at * row + columns.y).x,
                           texel(cache, at * row + columns.z).x, texel(cache, at * row + columns.w).x);
        sum = sum * rescale + weight * values;
        maximum = new_maximum;
    }
    return sum / weight_sum;
}

void main() {
    int across = out_row / 4, token = gl_VertexID / across;
    int first = (gl_VertexID - token * across) * 4, last = -1;
    vec4 found = vec4(0.0);
    for (int i = 0; i < 4; ++i) {
        int head = min(first + i, heads * width - 1) / width;
        if (head != last) found = attended(token, head, first - head * width);
        last = head;
        result[i] = found[i];
    }
}
