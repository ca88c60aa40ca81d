// What an op applies to its result before storing it. The codes are those of glnn/graph/operators/epilogue.py.
#include "common/nan.glsl"
#ifndef ACTIVATION
#define ACTIVATION 0
#endif

float activate(float x) {
#if ACTIVATION == 1
    float decay = decayed(abs(x));
    return is_nan(x) ? x : (x < 0.0 ? decay : 1.0) / (1.0 + decay);
#elif ACTIVATION == 2
    return greater(x, 0.0);
#elif ACTIVATION == 3
    // The built-in overflows on some drivers; the quotient cancels near 0, where the series holds.
    float square = x * x;
    float series = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0))));
    float decay = decayed(2.0 * abs(x));
    float quotient = (1.0 - decay) / (1.0 + decay);
    return is_nan(x) ? x : square < 0.04 ? series : (x < 0.0 ? -quotient : quotient);
#else
    return x;
#endif
}

vec4 activate(vec4 v) {
    return vec4(activate(v.x), activate(v.y), activate(v.z), activate(v.w));
}
