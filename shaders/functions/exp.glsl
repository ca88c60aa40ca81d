#include "functions/special.glsl"
// Exponentials to about 1 ulp. The built-in's error may grow with its argument.

float power_of_two(int k) {
    return intBitsToFloat((k + 127) << 23);
}

// y * 2^k for a k of -250 to 250, in two steps: 2^128 is no float.
float scaled(float y, int k) {
    int some = k >> 1;
    return y * power_of_two(some) * power_of_two(k - some);
}

// exp(x) - 1 for a magnitude of x of at most 0.35.
float exponential_tail(float x) {
    float series = 0.000198919698;
    series = series * x + 0.00139345317;
    series = series * x + 0.00833331003;
    series = series * x + 0.0416664569;
    series = series * x + 0.166666667;
    series = series * x + 0.500000001;
    return x * x * series + x;
}

// exp(x) = 2^k * exp(r), with a k of 13 bits whose product with the first part of ln 2 is exact.
float exponential(float x) {
    float k = floor(x * 1.44269504 + 0.5);
    float r = (x - k * 0.693359375) - k * -2.12194440e-4;
    return is_nan(x) ? x
        : x > 88.72283 ? INF
        : x < -104.0 ? 0.0
        : scaled(1.0 + exponential_tail(r), int(k));
}

float exponential_base_2(float x) {
    float k = floor(x + 0.5);
    return is_nan(x) ? x
        : x >= 128.0 ? INF
        : x < -150.0 ? 0.0
        : scaled(1.0 + exponential_tail((x - k) * 0.69314718), int(k));
}

float exponential_minus_one(float x) {
    return abs(x) < 0.34 ? exponential_tail(x) : exponential(x) - 1.0;
}
