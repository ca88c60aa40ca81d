// Weights as vec4: floats, halves (WEIGHT_HALF), bytes (WEIGHT_BYTES) or texels (WEIGHT_TEXTURE).
// WEIGHT(i) is the i-th vec4. With WEIGHT_TILES, READ_TILE(i) is a TILE of four vec4 and OF_TILE(tile, l) one of
// them; the bytes of a tile are loaded at once. With PLAIN the weights are the unpacked numbers
// (o, c, kh, kw), which kernels index themselves.
#ifndef PLAIN
#define PLAIN 0
#endif
#ifndef WEIGHT_TEXTURE
#define WEIGHT_TEXTURE 0
#endif
#ifndef WEIGHT_HALF
#define WEIGHT_HALF 0
#endif
#ifndef WEIGHT_BYTES
#define WEIGHT_BYTES 0
#endif
#ifndef WEIGHT_TILES
#define WEIGHT_TILES 0
#endif
#if PLAIN
layout(std430, binding = 1) buffer Weight { float weight[]; };
#elif WEIGHT_TEXTURE
#include "common/texel.glsl"
uniform highp WEIGHT_SAMPLER weight;
#define WEIGHT(i) texel(weight, i)
#elif WEIGHT_HALF
#include "common/half.glsl"
layout(std430, binding = 1) buffer Weight { uvec2 weight[]; };
#define WEIGHT(i) four_halves(weight[i])
#elif WEIGHT_BYTES
#include "common/bytes.glsl"
#if WEIGHT_TILES
layout(std430, binding = 1) buffer Weight { ivec4 weight[]; };
#define TILE ivec4
#define READ_TILE(i) weight[i]
#define OF_TILE(tile, l) vec4(four_signed(tile[l]))
#else
layout(std430, binding = 1) buffer Weight { int weight[]; };
#define WEIGHT(i) vec4(four_signed(weight[i]))
#endif
#else
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
#define WEIGHT(i) weight[i]
#endif
#if WEIGHT_TILES && !WEIGHT_BYTES
#define TILE int
#define READ_TILE(i) (4 * (i))
#define OF_TILE(tile, l) WEIGHT(tile + l)
#endif
