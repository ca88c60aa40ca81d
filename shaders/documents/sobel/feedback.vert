#version 300 es
// Gronqvist's kernels (section 1.3) by transform feedback: both gradients of WORDS words in ROWS rows
// a vertex, a tile of the result.
#ifndef WORDS
#define WORDS 2
#endif
#ifndef ROWS
#define ROWS 1
#endif
#ifndef LOADS
#define LOADS 1
#endif
#ifndef X_SAMPLER
#define X_SAMPLER isampler2D
#endif
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
#define WORD_AT(i) uint(texel(x, i).x)
#if WORDS == 4
#define CHARS_AT(i) uvec4(texel(x, i))
#define FIRST_AT(i) WORD_AT(i)
#define LAST_AT(i) uint(texel(x, i).w)
#define RESULT ivec4
#elif WORDS == 2
#define CHARS_AT(i) uvec2(WORD_AT(2 * (i)), WORD_AT(2 * (i) + 1))
#define FIRST_AT(i) WORD_AT(2 * (i))
#define LAST_AT(i) WORD_AT(2 * (i) + 1)
#define RESULT ivec2
#else
#define CHARS_AT(i) WORD_AT(i)
#define RESULT int
#endif
uniform int height, width, words;
#if WORDS == 1
#include "documents/sobel/char.glsl"
#else
#include "documents/sobel/rows.glsl"
#endif
flat out highp RESULT result[2 * ROWS];

void main() {
    int across = (width + 4 * WORDS - 1) / (4 * WORDS);
    int row = gl_VertexID / across;
    CHARS dx[ROWS], dy[ROWS];
    gradients(row * ROWS, gl_VertexID - row * across, dx, dy);
    for (int i = 0; i < ROWS; ++i) {
        result[i] = RESULT(dx[i]);
        result[ROWS + i] = RESULT(dy[i]);
    }
}
