// x as floats in a buffer, or as texels of four (X_TEXTURE): X(i) is a NUMBER, of LANES channels.
#ifndef X_TEXTURE
#define X_TEXTURE 0
#endif
#if X_TEXTURE
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
#define X(i) texel(x, i)
#define NUMBER vec4
#define LANES 4
#else
layout(std430, binding = 0) buffer X { float x[]; };
#define X(i) x[i]
#define NUMBER float
#define LANES 1
#endif
