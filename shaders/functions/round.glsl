#include "functions/special.glsl"
// From 2^23 on floats are integers; infinities and NaN stay what they are.

float float_floor(float x) {
    return is_finite(x) && abs(x) < 8388608.0 ? floor(x) : x;
}

float float_ceil(float x) {
    return is_finite(x) && abs(x) < 8388608.0 ? ceil(x) : x;
}

float float_trunc(float x) {
    return is_finite(x) && abs(x) < 8388608.0 ? with_sign(floor(abs(x)), x) : x;
}

// To the nearest integer, of two the even one.
float round_half_even(float x) {
    float size = abs(x);
    float below = floor(size);
    float rest = size - below;
    bool odd = below * 0.5 != floor(below * 0.5);
    float nearest = rest > 0.5 || (rest == 0.5 && odd) ? below + 1.0 : below;
    return is_finite(x) && size < 8388608.0 ? with_sign(nearest, x) : x;
}
