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

float number(int token, int number) {
    int place = texel(places, token).x;
    if (place < 0 || place >= rows) return 0.0;
    int head = number / width, column = number - head * width, row = 2 * kv_heads * width;
    int query = token * x_row + start + head * width;
    int key = head / group * width, value = (kv_heads + head / group) * width + column;
    int seen = min(place % context + 1, window);
    float most = -3.0e38, total = 0.0, sum = 0.0;
    for (int at = place - seen + 1; at <= place; ++at) {
        float score = 0.0;
        for (int i = 0; i < width; ++i)
            score += texel(x, query + i).x * texel(cache, at * row + key + i).x;
        score = capped(score * scale);
        float now = greater(most, score), shrink = exp(most - now), weight = exp(score - now);
        total = total * shrink + weight;
        sum = sum * shrink + weight * texel(cache, at * row + value).x;
        most = now;
    }
    return sum / total;
}

void main() {
    int across = out_row / 4, token = gl_VertexID / across;
    for (int i = 0; i < 4; ++i)
        result[i] = number(token, min((gl_VertexID - token * across) * 4 + i, heads * width - 1));
}
