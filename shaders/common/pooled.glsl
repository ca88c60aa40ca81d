// Pooling of windows of 2 x 2 results before they are stored.
#ifndef POOL
#define POOL 0  // 1 the maximum, 2 the mean
#endif
#if POOL
#define SIDE 2
#else
#define SIDE 1
#endif
#include "common/nan.glsl"
#if POOL == 1
#define POOLED(a, b, c, d) greater(greater(a, b), greater(c, d))
#else
#define POOLED(a, b, c, d) (0.25 * ((a + b) + (c + d)))
#endif
