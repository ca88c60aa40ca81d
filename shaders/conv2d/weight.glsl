// Weights as vec4: floats, or halves (WEIGHT_HALF).
#ifndef WEIGHT_HALF
#define WEIGHT_HALF 0
#endif
#if WEIGHT_HALF
#include "common/half.glsl"
layout(std430, binding = 1) buffer Weight { uvec2 weight[]; };
#define WEIGHT(i) four_halves(weight[i])
#else
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
#define WEIGHT(i) weight[i]
#endif
