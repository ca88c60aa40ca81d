#version 300 es
// Gathers rows of packed weights, unpacked, by transform feedback: four weights a vertex.
#define NUMBERS vec4
#ifndef INDEX_SAMPLER
#define INDEX_SAMPLER isampler2D
#endif
#include "common/texel.glsl"
uniform highp INDEX_SAMPLER index;
uniform highp WEIGHT_SAMPLER weight;
#define PACKED(i) uvec4(texel(weight, i))
#include "common/quantized.glsl"
uniform int n, k, units, out_row;
#include <epilogue>
out highp vec4 result;

void main() {
    int across = out_row / 4;
    int row = gl_VertexID / across, quad = gl_VertexID - row * across;
    int source = texel(index, row).x;
    vec4 weights = unpacked(clamp(source < 0 ? source + n : source, 0, n - 1) * units * 8 + quad);
    result = epilogue(weights, gl_VertexID, quad);
}
