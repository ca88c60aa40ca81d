#include "functions/special.glsl"

// x = m * 2^exponent with an m from sqrt(1/2) to sqrt(2), for a finite x above 0.
float mantissa(float x, out float exponent) {
    uint bits = floatBitsToUint(x);
    exponent = -127.0;
    if (bits < 0x00800000u) {  // subnormal: bits * 2^-149
        bits = floatBitsToUint(float(bits));
        exponent = -276.0;
    }
    bits += 0x3f800000u - 0x3f3504f3u;
    exponent += float(bits >> 23);
    return uintBitsToFloat((bits & 0x007fffffu) + 0x3f3504f3u);
}

// log(1 + x) - x for an x from sqrt(1/2) - 1 to sqrt(2) - 1 (Cephes, logf).
float logarithm_tail(float x) {
    float series = 7.0376836292e-2;
    series = series * x - 1.1514610310e-1;
    series = series * x + 1.1676998740e-1;
    series = series * x - 1.2420140846e-1;
    series = series * x + 1.4249322787e-1;
    series = series * x - 1.6668057665e-1;
    series = series * x + 2.0000714765e-1;
    series = series * x - 2.4999993993e-1;
    series = series * x + 3.3333331174e-1;
    return x * x * (x * series - 0.5);
}

float logarithm(float x) {
    float exponent;
    float part = mantissa(x, exponent) - 1.0;
    float tail = logarithm_tail(part) + exponent * -2.12194440e-4;
    return is_nan(x) ? x
        : x == 0.0 ? -INF
        : x < 0.0 ? NAN
        : is_infinite(x) ? x
        : part + tail + exponent * 0.693359375;
}

float logarithm_base_2(float x) {
    float exponent;
    float part = mantissa(x, exponent) - 1.0;
    return is_nan(x) ? x
        : x == 0.0 ? -INF
        : x < 0.0 ? NAN
        : is_infinite(x) ? x
        : exponent + (part + logarithm_tail(part)) * 1.44269504;
}

float logarithm_plus_one(float x) {
    return x > -0.29 && x < 0.41 ? x + logarithm_tail(x) : logarithm(1.0 + x);
}
