#include "functions/exp.glsl"

// log2(x) = n + high + low to 36 bits or so, as high + low, for a finite x above 0
// (fdlibm, e_powf.c: s is (x - b) / (x + b) for a b of 1 or 1.5; products of high parts are exact).
float logarithm_base_2_in_parts(float x, out float low) {
    uint bits = floatBitsToUint(x);
    int n = -127;
    if (bits < 0x00800000u) {  // subnormal: bits * 2^-149
        bits = floatBitsToUint(float(bits));
        n = -276;
    }
    n += int(bits >> 23);
    uint digits = bits & 0x007fffffu;
    bits = digits | 0x3f800000u;
    bool middle = digits > 0x1cc471u && digits < 0x5db3d7u;  // sqrt(1.5) to sqrt(3)
    if (digits >= 0x5db3d7u) {
        ++n;
        bits -= 0x00800000u;
    }
    float size = uintBitsToFloat(bits), base = middle ? 1.5 : 1.0;
    float u = size - base, v = 1.0 / (size + base);
    float s = u * v, s_high = high_part(s);
    float t_high = uintBitsToFloat((((bits >> 1) & 0xfffff000u) | 0x20000000u) + 0x00400000u + (middle ? 0x00200000u : 0u));
    float t_low = size - keep_rounding(t_high - base);
    float s_low = v * (keep_rounding(u - s_high * t_high) - s_high * t_low);
    float square = s * s;
    float series = 2.0697501302e-1;
    series = series * square + 2.3066075146e-1;
    series = series * square + 2.7272811532e-1;
    series = series * square + 3.3333334327e-1;
    series = series * square + 4.2857142687e-1;
    series = series * square + 6.0000002384e-1;
    series = series * square * square + s_low * (s_high + s);
    square = s_high * s_high;
    t_high = high_part(3.0 + square + series);
    t_low = series - (keep_rounding(t_high - 3.0) - square);
    u = s_high * t_high;
    v = s_low * t_high + t_low * s;
    float p_high = high_part(u + v), p_low = v - keep_rounding(p_high - u);
    float z_high = 9.6191406250e-1 * p_high;  // 2 / (3 ln 2), in two parts
    float z_low = -1.1736857402e-4 * p_high + p_low * 9.6179670095e-1 + (middle ? 1.56322085e-6 : 0.0);
    float whole = middle ? 5.84960938e-1 : 0.0;  // log2(1.5)
    float high = high_part(((z_high + z_low) + whole) + float(n));
    low = z_low - (keep_rounding((high - float(n)) - whole) - z_high);
    return high;
}

// size^y for a finite size above 0 that is not 1 and a finite y.
float power_of(float size, float y) {
    float low;
    float high = logarithm_base_2_in_parts(size, low);
    if (abs(y) > 1.0e15) return (high + low > 0.0) == (y > 0.0) ? INF : 0.0;
    float y_high = high_part(y);
    float rest = (y - y_high) * high + y * low;
    float exponent = y_high * high;
    float k = floor(exponent + rest + 0.5);
    if (k > 129.0) return INF;
    if (k < -160.0) return 0.0;
    return scaled(1.0 + exponential_tail(((exponent - k) + rest) * 0.69314718), int(k));
}

// x^y as C's pow has it: 1 for an x of 1 and for a y of 0, whatever the other.
float power(float x, float y) {
    uint x_size = floatBitsToUint(x) & 0x7fffffffu, y_size = floatBitsToUint(y) & 0x7fffffffu;
    if (floatBitsToUint(x) == 0x3f800000u || y_size == 0u) return 1.0;
    if (is_nan(x) || is_nan(y)) return NAN;
    bool down = (floatBitsToUint(y) & 0x80000000u) != 0u, below = (floatBitsToUint(x) & 0x80000000u) != 0u;
    float size = uintBitsToFloat(x_size), y_abs = uintBitsToFloat(y_size);
    bool whole = y_abs >= 8388608.0 || floor(y_abs) == y_abs;
    bool odd = whole && y_abs < 16777216.0 && (int(y_abs) & 1) == 1;
    float value;
    if (x_size == 0u || x_size == 0x7f800000u) value = (x_size == 0u) == down ? INF : 0.0;
    else if (below && !whole) return NAN;
    else if (x_size == 0x3f800000u) value = 1.0;
    else if (y_size == 0x7f800000u) value = (x_size > 0x3f800000u) == down ? 0.0 : INF;
    else value = power_of(size, y);
    return below && odd ? -value : value;
}

// By squaring, in 32 bits; 0 for fractions.
int integer_power(int x, int y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? ((y & 1) == 0 ? 1 : -1) : 0;
    int value = 1;
    for (; y > 0; y >>= 1) {
        if ((y & 1) == 1) value *= x;
        x *= x;
    }
    return value;
}
