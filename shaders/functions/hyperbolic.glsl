#include "functions/exp.glsl"

// exp(x) / 2 for an x of at least 0, finite as long as that is.
float half_exponential(float x) {
    float root = exponential(0.5 * x);
    return 0.5 * root * root;
}

float hyperbolic_sine(float x) {
    float size = abs(x), square = x * x;
    float series = x * (1.0 + square * (1.66667160211e-1 + square * (8.33028376239e-3 + square * 2.03721912945e-4)));
    float large = half_exponential(size);
    return is_nan(x) ? x : size < 1.0 ? series : with_sign(large - 0.25 / large, x);
}

float hyperbolic_cosine(float x) {
    float large = half_exponential(abs(x));
    return is_nan(x) ? x : large + 0.25 / large;
}
