#include "functions/special.glsl"
#include "functions/integer.glsl"

// The remainder of a / b with the sign of a, as C's fmod, exactly: a long division of the mantissas,
// 8 bits at a time.
float float_remainder(float a, float b) {
    uint x = floatBitsToUint(a) & 0x7fffffffu;
    uint y = floatBitsToUint(b) & 0x7fffffffu;
    if (x >= 0x7f800000u || y > 0x7f800000u || y == 0u) return NAN;
    if (x < y) return a;
    int x_exponent = int(x >> 23), y_exponent = int(y >> 23);
    uint remainder = x & 0x007fffffu, divisor = y & 0x007fffffu;
    if (x_exponent == 0) x_exponent = 1; else remainder |= 0x00800000u;
    if (y_exponent == 0) y_exponent = 1; else divisor |= 0x00800000u;
    remainder %= divisor;
    for (int more = x_exponent - y_exponent; more > 0 && remainder != 0u; more -= 8)
        remainder = (remainder << (more < 8 ? more : 8)) % divisor;
    // The remainder is so many times 2^(y_exponent - 150).
    while (remainder != 0u && remainder < 0x00800000u && y_exponent > 1) {
        remainder <<= 1;
        --y_exponent;
    }
    uint bits = remainder < 0x00800000u ? remainder : (remainder & 0x007fffffu) | (uint(y_exponent) << 23);
    return uintBitsToFloat(bits | (floatBitsToUint(a) & 0x80000000u));
}

// The remainder with the sign of b, as Python's %.
float float_modulo(float a, float b) {
    float remainder = float_remainder(a, b);
    if (remainder == 0.0) return with_sign(remainder, b);
    return !is_nan(remainder) && (remainder < 0.0) != (b < 0.0) ? remainder + b : remainder;
}
