#version 300 es
// A part of the sums of x weight^T by transform feedback: four columns of a row a vertex. The parts
// lie below one another. Where a product has few results, they keep more of the GPU busy.
#define BATCHED 0
#include "matmul/texels.glsl"
uniform int m, width, out_row;
out highp vec4 result;

void main() {
    int columns = out_row / 4;
    int row = gl_VertexID / columns;
    int column = gl_VertexID - row * columns;
    int part = row / m;
    row -= part * m;
    vec4 sum = vec4(0.0);
    int last = min((part + 1) * width, k);
    for (int i = part * width; i < last; i += 4) {
        mat4 w = weights_of(0, column, i / 4, k - i);
#if X_IN_C
        vec4 a;
        for (int j = 0; j < 4; ++j) a[j] = column_of(row / 4, i / 4, j, k - i)[row % 4];
#else
        vec4 a = first_of(texel(x, row * (x_row / 4) + i / 4), k - i);  // padding may hold anything
#endif
        sum += a.x * w[0] + a.y * w[1] + a.z * w[2] + a.w * w[3];
    }
    result = sum;
}
