#version 300 es
// COUNT operands behind one another by transform feedback. The host writes the samplers.
#ifndef COUNT
#define COUNT 2
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef VECTORS
#define VECTORS 1
#endif
#define NUMBERS ivec4
#include "common/texel.glsl"
#include <operands>
#define FETCHED(x, i) texel(x, i)
#include "concat/fetch.glsl"

ivec4 vector(int i) {
#if WIDTH == 4
    return fetch(i);
#else
    return ivec4(fetch(4 * i).x, fetch(4 * i + 1).x, fetch(4 * i + 2).x, fetch(4 * i + 3).x);
#endif
}
#include "common/capture.glsl"
