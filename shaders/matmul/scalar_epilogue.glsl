// What every matmul kernel that computes single floats does to a sum before storing it.
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_C
#define HAS_C 0
#endif
#include "common/activation.glsl"
#if HAS_BIAS
layout(std430, binding = 3) buffer Bias { float bias[]; };
#elif HAS_C
layout(std430, binding = 3) buffer C { float c[]; };
#endif
uniform float alpha, beta;

// column: of the result. place: where the result is stored, and c like it.
float finish(float sum, int column, int place) {
    float value = alpha * sum;
#if HAS_BIAS
    value += bias[column];
#elif HAS_C
    value += beta * c[place];
#endif
    return activate(value);
}

// The first `rest` of four numbers; what lies behind them may be anything.
vec4 first_of(vec4 v, int rest) {
    return vec4(v.x, rest > 1 ? v.y : 0.0, rest > 2 ? v.z : 0.0, rest > 3 ? v.w : 0.0);
}
