// The function that ACTIVATION tells of, by its place among the CODES of
// glnn/graph/operators/activation.py.
#ifndef ACTIVATION
#define ACTIVATION 0
#endif
#include "common/nan.glsl"
#include "functions/sigmoid.glsl"
#include "functions/tanh.glsl"

float activate(float x) {
#if ACTIVATION == 1
    return sigmoid(x);
#elif ACTIVATION == 2
    return greater(x, 0.0);
#elif ACTIVATION == 3
    return hyperbolic_tangent(x);
#else
    return x;
#endif
}

vec4 activate(vec4 v) {
    return vec4(activate(v.x), activate(v.y), activate(v.z), activate(v.w));
}
