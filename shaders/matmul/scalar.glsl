// What every matmul kernel that computes single floats does to a sum before storing it.
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_C
#define HAS_C 0
#endif
#ifndef IN_PLACE
#define IN_PLACE 0  // c lies in the result's memory: storage blocks are short
#endif
#include "common/activation.glsl"
layout(std430, binding = 2) buffer Out { float result[]; };
#if HAS_BIAS
layout(std430, binding = 3) buffer Bias { float bias[]; };
#endif
#if HAS_C && !IN_PLACE && HAS_BIAS
layout(std430, binding = 4) buffer C { float c[]; };
#elif HAS_C && !IN_PLACE
layout(std430, binding = 3) buffer C { float c[]; };
#endif
uniform float alpha, beta;

// Stores a sum at `place`, beside c if there is one. column: of the result.
void finish(float sum, int column, int place) {
    float value = alpha * sum;
#if HAS_BIAS
    value += bias[column];
#endif
#if HAS_C && IN_PLACE
    value += beta * result[place];
#elif HAS_C
    value += beta * c[place];
#endif
    result[place] = activate(value);
}
