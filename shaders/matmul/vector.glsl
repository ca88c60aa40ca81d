// What the matmul kernels that compute four columns at a time do to four sums before storing them.
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_C
#define HAS_C 0
#endif
#include "common/activation.glsl"
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#if HAS_BIAS
layout(std430, binding = 3) buffer Bias { vec4 bias[]; };
#endif
uniform float alpha, beta;

// Stores four sums at `place`, where c is if there is one; they are the `quad`th of the columns.
void finish(vec4 sum, int quad, int place) {
    vec4 value = alpha * sum;
#if HAS_BIAS
    value += bias[quad];
#endif
#if HAS_C
    value += beta * result[place];
#endif
    result[place] = activate(value);
}
