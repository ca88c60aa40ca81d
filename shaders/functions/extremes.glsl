#include "common/nan.glsl"

// The lesser of two, NaN if either is: what numpy.minimum gives.
float lesser(float a, float b) {
    return is_nan(a) ? a : is_nan(b) ? b : min(a, b);
}

// From `low` to `high`, which wins where it is less; NaN if any is.
float clipped(float x, float low, float high) {
    return is_nan(x) ? x : is_nan(low) ? low : is_nan(high) ? high : min(max(x, low), high);
}
