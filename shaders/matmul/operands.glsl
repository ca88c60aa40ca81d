// The operands of matmul as vec4: floats or halves (X_HALF, WEIGHT_HALF), weights also bytes
// (WEIGHT_BYTES) or packed (QUANTIZED, see common/quantized.glsl), in buffers or in a texture (X_TEXTURE,
// WEIGHT_TEXTURE). x is row-major, or column-major (X_IN_C); weights are in the first layout that the
// kernel accepts, or row-major (WEIGHT_IN_R4), or column-major (WEIGHT_IN_C).
#ifndef QUANTIZED
#define QUANTIZED 0
#endif
#if QUANTIZED
#define WEIGHT_IN_R4 1
#endif
#include "matmul/layouts.glsl"
#ifndef WEIGHT_HALF
#define WEIGHT_HALF 0
#endif
#ifndef WEIGHT_BYTES
#define WEIGHT_BYTES 0
#endif
#include "common/first_of.glsl"
#include "common/x.glsl"
#if WEIGHT_BYTES
#include "common/bytes.glsl"
#endif
#if QUANTIZED
uniform int units;
#define PACKED_BY_WORDS 1
#include "common/quantized.glsl"
#define WEIGHT_ROW (32 * units)
#elif WEIGHT_TEXTURE
uniform highp WEIGHT_SAMPLER weight;
#elif WEIGHT_HALF
layout(std430, binding = 1) buffer Weight { uvec2 weight[]; };
#elif WEIGHT_BYTES
layout(std430, binding = 1) buffer Weight { int weight[]; };
#else
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
#endif

#if !QUANTIZED
#define WEIGHT_ROW (BATCHED == 1 ? k : weight_row)
#endif

vec4 weight_at(int i) {
#if QUANTIZED
    return unpacked(i);
#elif WEIGHT_TEXTURE
    return texel(weight, i);
#elif WEIGHT_HALF
    return four_halves(weight[i]);
#elif WEIGHT_BYTES
    return vec4(four_signed(weight[i]));
#else
    return weight[i];
#endif
}
