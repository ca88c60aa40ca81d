#version 300 es
// Rotary embeddings by transform feedback: four numbers of a token a vertex.
#define HAS_ROTARY 1
#ifndef PLACES_SAMPLER
#define PLACES_SAMPLER isampler2D
#endif
#ifndef ROTARY_SAMPLER
#define ROTARY_SAMPLER sampler2D
#endif
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp PLACES_SAMPLER places;
uniform highp ROTARY_SAMPLER rotary;
uniform int tokens, heads, width, context, start, x_row, rotary_row, out_row;
#define NUMBER(head, i) texel(x, (head) + (i)).x
#define TABLE(row, i) texel(rotary, (row) + (i)).x
#include "common/rotary.glsl"
out highp vec4 result;

void main() {
    int across = out_row / 4, token = gl_VertexID / across;
    int position = max(texel(places, token).x, 0) % context;
    for (int i = 0; i < 4; ++i) {
        int number = min((gl_VertexID - token * across) * 4 + i, heads * width - 1);
        int head = number / width, from = token * x_row + start + head * width;
        result[i] = rotated(from, position * rotary_row, number - head * width);
    }
}
