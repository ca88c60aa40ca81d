#include "common/nan.glsl"

// The normal distribution's cumulative function, to 2e-7: the tail behind |x| is 2 to the power of a
// polynomial, by least maximum error up to 6. Beyond, where less than 1e-9 is left, that falls on.
float normal_cdf(float x) {
    float size = abs(x);
    float power = -2.28885756e-6;
    power = power * size + 3.3040541e-5;
    power = power * size - 1.57035684e-4;
    power = power * size - 2.0509804e-4;
    power = power * size + 7.14986166e-3;
    power = power * size - 5.25546931e-2;
    power = power * size - 4.59188968e-1;
    power = power * size - 1.15110767;
    power = power * size - 1.0;
    float tail = exp2(max(power, -150.0));
    return is_nan(x) ? x : x > 0.0 ? 1.0 - tail : tail;
}
