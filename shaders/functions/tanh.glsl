#include "common/nan.glsl"

// The built-in overflows on some drivers; the quotient cancels near 0, where the series holds.
float hyperbolic_tangent(float x) {
    float square = x * x;
    float series = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 - square * (17.0 / 315.0))));
    float decay = exp_minus(2.0 * abs(x));
    float quotient = (1.0 - decay) / (1.0 + decay);
    return is_nan(x) ? x : square < 0.04 ? series : (x < 0.0 ? -quotient : quotient);
}
