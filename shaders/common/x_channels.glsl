// x as floats in a buffer, or as texels of four channels (X_TEXTURE): X(i) is a VALUE, of CHANNELS
// channels.
#ifndef X_TEXTURE
#define X_TEXTURE 0
#endif
#if X_TEXTURE
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
#define X(i) texel(x, i)
#define VALUE vec4
#define CHANNELS 4
#else
layout(std430, binding = 0) buffer X { float x[]; };
#define X(i) x[i]
#define VALUE float
#define CHANNELS 1
#endif
