#include "functions/special.glsl"
// Sine, cosine and tangent of any float: the argument is reduced by multiples of pi / 2 in
// integers (Payne and Hanek 1983), and polynomials of Cephes follow.

// The upper 32 bits of a product.
uint high_product(uint a, uint b) {
    uint a0 = a & 0xffffu, a1 = a >> 16, b0 = b & 0xffffu, b1 = b >> 16;
    uint middle = a1 * b0 + (a0 * b0 >> 16);
    uint other = a0 * b1 + (middle & 0xffffu);
    return a1 * b1 + (middle >> 16) + (other >> 16);
}

// x less the nearest multiple of pi / 2, which is `quarter` times that (its last two bits count).
float reduce_argument(float x, out int quarter) {
    float size = abs(x);
    quarter = 0;
    if (size <= 0.78539816) return x;
    // x = digits * 2^(exponent - 32). The bits of 2 / pi that matter begin at `exponent`.
    uint bits = floatBitsToUint(size);
    uint digits = (bits << 8) | 0x80000000u;
    int exponent = int(bits >> 23) - 126;
    int first = exponent >> 5, shift = exponent & 31;
    uvec4 words = first == 0 ? uvec4(0u, 0x28be60dbu, 0x9391054au, 0x7f09d5f4u)
        : first == 1 ? uvec4(0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u)
        : first == 2 ? uvec4(0x9391054au, 0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u)
        : first == 3 ? uvec4(0x7f09d5f4u, 0x7d4d3770u, 0x36d8a566u, 0x4f10e410u)
        : uvec4(0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0u);
    if (shift != 0) {
        words.x = (words.x << shift) | (words.y >> (32 - shift));
        words.y = (words.y << shift) | (words.z >> (32 - shift));
        words.z = (words.z << shift) | (words.w >> (32 - shift));
    }
    // The product: two bits before the point, 62 behind it.
    uint carry = high_product(digits, words.z);
    uint low = digits * words.y + carry;
    uint high = high_product(digits, words.y) + digits * words.x + (low < carry ? 1u : 0u);
    quarter = int(high >> 30);
    high &= 0x3fffffffu;
    bool less = high >= 0x20000000u;  // nearer to the next multiple
    if (less) {
        ++quarter;
        low = ~low + 1u;
        high = (~high & 0x3fffffffu) + (low == 0u ? 1u : 0u);
    }
    float rest = (float(high) * 4294967296.0 + float(low)) * 3.4061215e-19;  // pi / 2 * 2^-62
    if (x < 0.0) quarter = -quarter;
    return less != x < 0.0 ? -rest : rest;
}

// Sine and cosine of an x whose magnitude is at most pi / 4.
float sine_near(float x) {
    float square = x * x;
    float series = (-1.9515295891e-4 * square + 8.3321608736e-3) * square - 1.6666654611e-1;
    return series * square * x + x;
}

float cosine_near(float x) {
    float square = x * x;
    float series = (2.443315711809948e-5 * square - 1.388731625493765e-3) * square + 4.166664568298827e-2;
    return series * square * square - 0.5 * square + 1.0;
}

// The sine of x and `quarters` of a circle more.
float sine_from(float x, int quarters) {
    int quarter;
    float rest = reduce_argument(is_finite(x) ? x : 0.0, quarter);
    quarter += quarters;
    float value = (quarter & 1) == 0 ? sine_near(rest) : cosine_near(rest);
    return is_finite(x) ? ((quarter & 2) == 0 ? value : -value) : NAN;
}

float sine(float x) {
    return sine_from(x, 0);
}

float cosine(float x) {
    return sine_from(x, 1);
}

float tangent(float x) {
    int quarter;
    float rest = reduce_argument(is_finite(x) ? x : 0.0, quarter);
    float square = rest * rest;
    float series = 9.38540185543e-3;
    series = series * square + 3.11992232697e-3;
    series = series * square + 2.44301354525e-2;
    series = series * square + 5.34112807005e-2;
    series = series * square + 1.33387994085e-1;
    series = series * square + 3.33331568548e-1;
    float value = series * square * rest + rest;
    return is_finite(x) ? ((quarter & 1) == 0 ? value : -1.0 / value) : NAN;
}
