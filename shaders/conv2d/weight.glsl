// Weights as vec4: floats, halves (WEIGHT_HALF) or bytes (WEIGHT_BYTES) of a buffer, or texels
// (WEIGHT_TEXTURE).
#ifndef WEIGHT_TEXTURE
#define WEIGHT_TEXTURE 0
#endif
#ifndef WEIGHT_HALF
#define WEIGHT_HALF 0
#endif
#ifndef WEIGHT_BYTES
#define WEIGHT_BYTES 0
#endif
#if WEIGHT_TEXTURE
#include "common/texel.glsl"
uniform highp WEIGHT_SAMPLER weight;
#define WEIGHT(i) texel(weight, i)
#elif WEIGHT_HALF
#include "common/half.glsl"
layout(std430, binding = 1) buffer Weight { uvec2 weight[]; };
#define WEIGHT(i) four_halves(weight[i])
#elif WEIGHT_BYTES
#include "common/bytes.glsl"
layout(std430, binding = 1) buffer Weight { int weight[]; };
#define WEIGHT(i) vec4(four_signed(weight[i]))
#else
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
#define WEIGHT(i) weight[i]
#endif
