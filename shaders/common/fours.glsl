// Four numbers of x and of the result: a vec4 (or RESULT, which the host may define), or halves, two in a
// word, where X_HALF or OUT_HALF is 1. X_AT(i) is the i-th vec4 of x, STORED(v) is v as the result's memory
// stores it.
#ifndef X_HALF
#define X_HALF 0
#endif
#ifndef OUT_HALF
#define OUT_HALF 0
#endif
#ifndef RESULT
#define RESULT vec4
#endif
#include "common/half.glsl"
#if X_HALF
#define X_FOUR uvec2
#define X_AT(i) four_halves(x[i])
#else
#define X_FOUR vec4
#define X_AT(i) x[i]
#endif
#if OUT_HALF
#define OUT_FOUR uvec2
#define STORED(v) halves_of(v)
#else
#define OUT_FOUR RESULT
#define STORED(v) (v)
#endif
