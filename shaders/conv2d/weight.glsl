// Weights as vec4: floats, or halves (WEIGHT_HALF), in a buffer or in a texture (WEIGHT_TEXTURE).
#ifndef WEIGHT_TEXTURE
#define WEIGHT_TEXTURE 0
#endif
#ifndef WEIGHT_HALF
#define WEIGHT_HALF 0
#endif
#if WEIGHT_TEXTURE
#include "common/texel.glsl"
uniform highp WEIGHT_SAMPLER weight;
#define WEIGHT(i) texel(weight, i)
#elif WEIGHT_HALF
#include "common/half.glsl"
layout(std430, binding = 1) buffer Weight { uvec2 weight[]; };
#define WEIGHT(i) four_halves(weight[i])
#else
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
#define WEIGHT(i) weight[i]
#endif
