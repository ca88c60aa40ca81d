// The operands of matmul as vec4: in buffers of floats, in buffers of halves (HALF), or one of them
// in a texture (X_TEXTURE, WEIGHT_TEXTURE).
#ifndef HALF
#define HALF 0
#endif
#ifndef X_TEXTURE
#define X_TEXTURE 0
#endif
#ifndef WEIGHT_TEXTURE
#define WEIGHT_TEXTURE 0
#endif
#include "common/first_of.glsl"
#if X_TEXTURE || WEIGHT_TEXTURE
#include "common/texel.glsl"
#endif
#if X_TEXTURE
uniform highp X_SAMPLER x;
#elif HALF
layout(std430, binding = 0) buffer X { uvec2 x[]; };
#else
layout(std430, binding = 0) buffer X { vec4 x[]; };
#endif
#if WEIGHT_TEXTURE
uniform highp WEIGHT_SAMPLER weight;
#elif HALF
layout(std430, binding = 1) buffer Weight { uvec2 weight[]; };
#else
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
#endif

vec4 x_at(int i) {
#if X_TEXTURE
    return texel(x, i);
#elif HALF
    return vec4(unpackHalf2x16(x[i].x), unpackHalf2x16(x[i].y));
#else
    return x[i];
#endif
}

vec4 weight_at(int i) {
#if WEIGHT_TEXTURE
    return texel(weight, i);
#elif HALF
    return vec4(unpackHalf2x16(weight[i].x), unpackHalf2x16(weight[i].y));
#else
    return weight[i];
#endif
}
