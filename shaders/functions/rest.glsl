#include "functions/special.glsl"
#include "functions/integer.glsl"

// What a / b leaves, with the sign of a, exactly: a long division of the digits, 8 at a time.
float float_rest(float a, float b) {
    uint x = floatBitsToUint(a) & 0x7fffffffu;
    uint y = floatBitsToUint(b) & 0x7fffffffu;
    if (x >= 0x7f800000u || y > 0x7f800000u || y == 0u) return NAN;
    if (x < y) return a;
    int x_exponent = int(x >> 23), y_exponent = int(y >> 23);
    uint left = x & 0x007fffffu, divisor = y & 0x007fffffu;
    if (x_exponent == 0) x_exponent = 1; else left |= 0x00800000u;
    if (y_exponent == 0) y_exponent = 1; else divisor |= 0x00800000u;
    left %= divisor;
    for (int more = x_exponent - y_exponent; more > 0 && left != 0u; more -= 8)
        left = (left << (more < 8 ? more : 8)) % divisor;
    // left * 2^(y_exponent - 150)
    while (left != 0u && left < 0x00800000u && y_exponent > 1) {
        left <<= 1;
        --y_exponent;
    }
    uint bits = left < 0x00800000u ? left : (left & 0x007fffffu) | (uint(y_exponent) << 23);
    return uintBitsToFloat(bits | (floatBitsToUint(a) & 0x80000000u));
}

// The same with the sign of b.
float float_modulo(float a, float b) {
    float left = float_rest(a, b);
    if (left == 0.0) return with_sign(left, b);
    return !is_nan(left) && (left < 0.0) != (b < 0.0) ? left + b : left;
}
