// What the matmul kernels that compute four columns at a time do to four sums before storing them.
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
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#if HAS_BIAS
layout(std430, binding = 3) buffer Bias { vec4 bias[]; };
#endif
#if HAS_C && !IN_PLACE && HAS_BIAS
layout(std430, binding = 4) buffer C { vec4 c[]; };
#elif HAS_C && !IN_PLACE
layout(std430, binding = 3) buffer C { vec4 c[]; };
#endif
uniform float alpha, beta;

// Stores four sums at `place`, beside c if there is one; they are the `quad`th of the columns.
void finish(vec4 sum, int quad, int place) {
    vec4 value = alpha * sum;
#if HAS_BIAS
    value += bias[quad];
#endif
#if HAS_C && IN_PLACE
    value += beta * result[place];
#elif HAS_C
    value += beta * c[place];
#endif
    result[place] = activate(value);
}
