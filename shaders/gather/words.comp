#version 310 es
// The words of the result, each from where an index says; the operand may be of halves (X_HALF).
#ifndef WG_X
#define WG_X 64
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#if WIDTH == 4
#define WORDS ivec4
#else
#define WORDS int
#endif
#ifndef X_HALF
#define X_HALF 0
#endif
#include "common/launch.glsl"
layout(local_size_x = WG_X) in;
#if X_HALF
#include "common/half.glsl"
#if WIDTH == 4
layout(std430, binding = 0) buffer X { uvec2 x[]; };
#define AT(i) floatBitsToInt(four_halves(x[i]))
#else
layout(std430, binding = 0) buffer X { uint x[]; };
#define AT(i) floatBitsToInt(one_half(x[(i) / 2], i))
#endif
#else
layout(std430, binding = 0) buffer X { WORDS x[]; };
#define AT(i) x[i]
#endif
layout(std430, binding = 1) buffer Index { int index[]; };
layout(std430, binding = 2) buffer Out { WORDS result[]; };
#define INDEX(i) index[i]
#include "gather/lookup.glsl"
uniform int places;

void main() {
    int stride = int(WORKGROUP_COUNT.x) * WG_X;
    for (int i = int(INVOCATION_ID.x); i < places; i += stride) {
        int target;
        int at = source(i, target);
        result[target] = AT(at);
    }
}
