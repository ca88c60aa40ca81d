#include "functions/log.glsl"
// Inverses of the hyperbolic functions. Beside the square of a large x, 1 is less than an ulp.

float inverse_hyperbolic_sine(float x) {
    float size = abs(x), square = size * size;
    float value = size > 1.0e4
        ? logarithm(size) + 0.69314718
        : logarithm_plus_one(size + square / (1.0 + sqrt(1.0 + square)));
    return is_nan(x) ? x : with_sign(value, x);
}

float inverse_hyperbolic_cosine(float x) {
    float above = x - 1.0;
    if (is_nan(x) || x < 1.0) return NAN;
    return x > 1.0e4
        ? logarithm(x) + 0.69314718
        : logarithm_plus_one(above + sqrt(2.0 * above + above * above));
}

float inverse_hyperbolic_tangent(float x) {
    float size = abs(x);
    if (is_nan(x) || size > 1.0) return NAN;
    return with_sign(size == 1.0 ? INF : 0.5 * logarithm_plus_one(2.0 * size / (1.0 - size)), x);
}
