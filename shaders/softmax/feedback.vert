#version 300 es
// Softmax along one axis by transform feedback, for short rows: each number finds the maximum and
// the sum of its own.
#ifndef LOG
#define LOG 0
#endif
#include "common/nan.glsl"
#include "common/texel.glsl"
uniform highp X_SAMPLER x;
uniform int extent, inner, x_row, out_row;

float element(int image, int i) {
    if (i >= out_row) return 0.0;
    bool samples = inner == out_row && extent > 1;  // a row goes through all of them
    int step = samples ? x_row : inner, along = samples ? image : i / inner % extent;
    int own = image * x_row + i, first = own - along * step;
    float maximum = LEAST, sum = 0.0;
    for (int k = 0; k < extent; ++k) maximum = greater(maximum, texel(x, first + k * step).x);
    for (int k = 0; k < extent; ++k) sum += exp_minus(maximum - texel(x, first + k * step).x);
    // Without a finite maximum all of the row is NaN, as differences of infinities are.
    if (!is_finite(maximum) || !is_finite(sum) || sum <= 0.0) return NAN;
    float difference = maximum - texel(x, own).x;
#if LOG
    return -difference - log(sum);
#else
    return exp_minus(difference) / sum;
#endif
}
#include "common/capture_elements.glsl"
