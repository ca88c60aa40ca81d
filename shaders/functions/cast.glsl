#include "functions/special.glsl"

// Towards 0 and to the nearest integer from `low` to `high`; NaN is 0.
int saturated(float x, float low, float high) {
    return is_nan(x) ? 0 : x <= low ? int(low) : x >= high ? int(high) : int(x);
}

int to_int8(float x) {
    return saturated(x, -128.0, 127.0);
}

int to_uint8(float x) {
    return saturated(x, 0.0, 255.0);
}

int to_int(float x) {
    return is_nan(x) ? 0
        : x >= 2147483648.0 ? 2147483647
        : x <= -2147483648.0 ? -2147483647 - 1
        : int(x);
}

bool not_zero(float x) {
    return (floatBitsToUint(x) & 0x7fffffffu) != 0u;
}

// Rounded to float16: to 11 bits, of two neighbours the even one; from 65520 on infinite.
float to_half(float x) {
    uint bits = floatBitsToUint(x), size = bits & 0x7fffffffu;
    if (size >= 0x477ff000u) return is_nan(x) ? x : with_sign(INF, x);
    if (size < 0x38800000u) {  // below 2^-14 halves are multiples of 2^-24
        float steps = uintBitsToFloat(size) * 16777216.0, below = floor(steps), rest = steps - below;
        bool odd = below * 0.5 != floor(below * 0.5);
        if (rest > 0.5 || (rest == 0.5 && odd)) below += 1.0;
        return with_sign(below * 5.9604645e-8, x);
    }
    return uintBitsToFloat((bits + 0xfffu + ((bits >> 13) & 1u)) & 0xffffe000u);
}
