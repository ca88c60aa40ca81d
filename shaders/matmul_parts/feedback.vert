#version 300 es
// A part of the sums of x weight^T by transform feedback: four columns of a row a vertex. The parts
// lie below one another. Where a product has few results, they keep more of the GPU busy.
#include "common/first_of.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform highp WEIGHT_SAMPLER weight;
uniform int m, k, width;
uniform int x_row, out_row;  // floats, multiples of 4
out highp vec4 result;

void main() {
    int columns = out_row / 4;
    int row = gl_VertexID / columns;
    int column = gl_VertexID - row * columns;
    int part = row / m;
    int start = (row - part * m) * (x_row / 4);
    vec4 sum = vec4(0.0);
    int last = min((part + 1) * width, k);
    for (int i = part * width; i < last; i += 4) {
        vec4 a = first_of(texel(x, start + i / 4), k - i);  // the row's padding may hold anything
        int tile = i * columns + column * 4;
        sum += a.x * texel(weight, tile) + a.y * texel(weight, tile + 1)
             + a.z * texel(weight, tile + 2) + a.w * texel(weight, tile + 3);
    }
    result = sum;
}
