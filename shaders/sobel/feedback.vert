#version 300 es
// Sixteen pixels of a gradient a vec4 by transform feedback, all of dx before those of dy.
#ifndef VECTORS
#define VECTORS 1
#endif
#define WIDTH 4
#ifndef X_SAMPLER
#define X_SAMPLER isampler2D
#endif
#include "common/texel.glsl"
#include "sobel/lanes.glsl"
uniform highp X_SAMPLER x;
uniform int height, width, words;
flat out highp ivec4 result[VECTORS];

// The terms of row `y` of the words of `column`.
Row row_at(int y, int column, int columns) {
    int row = y * columns;
    uint before = uint(texel(x, row + max(column - 1, 0)).w);
    uint after = uint(texel(x, row + min(column + 1, columns - 1)).x);
    return row_of(before, uvec4(texel(x, row + column)), after);
}

// The i-th vec4 of the result.
uvec4 vector(int i) {
    int columns = words / WIDTH;
    int row = i / columns;
    int column = i - row * columns, y = row < height ? row : row - height;
    if (y == 0 || y == height - 1) return uvec4(0u);
    Row above = row_at(y - 1, column, columns), below = row_at(y + 1, column, columns);
    uvec4 bytes;
    if (row < height) {
        Row middle = row_at(y, column, columns);
        uvec4 even = above.across_even + 2u * middle.across_even + below.across_even;
        uvec4 odd = above.across_odd + 2u * middle.across_odd + below.across_odd;
        bytes = bytes_of(even, odd);
    } else {
        uvec4 even = above.along_even - below.along_even;
        bytes = bytes_of(even, above.along_odd - below.along_odd);
    }
    return bytes & within(uint(column * WIDTH), uint(width));
}

void main() {
    int last = 2 * height * (words / WIDTH) - 1;
    for (int i = 0; i < VECTORS; ++i) {
        result[i] = ivec4(vector(min(gl_VertexID * VECTORS + i, last)));
    }
}
