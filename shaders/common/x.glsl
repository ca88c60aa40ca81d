// x as vec4: floats or halves (X_HALF) in a buffer, or texels (X_TEXTURE). x_at(i) is its i-th vec4.
#ifndef X_TEXTURE
#define X_TEXTURE 0
#endif
#ifndef WEIGHT_TEXTURE
#define WEIGHT_TEXTURE 0
#endif
#include "common/fours.glsl"
#if X_TEXTURE || WEIGHT_TEXTURE  // a file is included only once: here for weights, too
#include "common/texel.glsl"
#endif
#if X_TEXTURE
uniform highp X_SAMPLER x;
#else
layout(std430, binding = 0) buffer X { X_FOUR x[]; };
#endif

vec4 x_at(int i) {
#if X_TEXTURE
    return texel(x, i);
#else
    return X_AT(i);
#endif
}
