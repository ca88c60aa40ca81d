#include "functions/special.glsl"
// Inverses of the trigonometric functions, by the polynomials of Cephes.

// asin(x) for a magnitude of x of at most 0.5. square: that of x.
float arc_near(float x, float square) {
    float series = 4.2163199048e-2;
    series = series * square + 2.4181311049e-2;
    series = series * square + 4.5470025998e-2;
    series = series * square + 7.4953002686e-2;
    series = series * square + 1.6666752422e-1;
    return series * square * x + x;
}

float arc_sine(float x) {
    float size = abs(x);
    if (is_nan(x) || size > 1.0) return NAN;
    if (size <= 0.5) return arc_near(x, x * x);
    float half_rest = 0.5 - 0.5 * size;
    float rest = half_rest > 0.0 ? sqrt(half_rest) : 0.0;
    return with_sign(1.57079633 - 2.0 * arc_near(rest, half_rest), x);
}

float arc_cosine(float x) {
    float size = abs(x);
    if (is_nan(x) || size > 1.0) return NAN;
    if (size <= 0.5) return 1.57079633 - arc_near(x, x * x);
    float half_rest = 0.5 - 0.5 * size;
    float rest = half_rest > 0.0 ? 2.0 * arc_near(sqrt(half_rest), half_rest) : 0.0;
    return x < 0.0 ? 3.14159265 - rest : rest;
}

float arc_tangent(float x) {
    float size = abs(x);
    if (is_nan(x)) return x;
    if (size > 1.0e8) return with_sign(1.57079633, x);
    bool large = size > 2.41421356, middle = !large && size > 0.414213562;
    float t = large ? -1.0 / size : middle ? (size - 1.0) / (size + 1.0) : size;
    float square = t * t;
    float series = 8.05374449538e-2;
    series = series * square - 1.38776856032e-1;
    series = series * square + 1.99777106478e-1;
    series = series * square - 3.33329491539e-1;
    float value = series * square * t + t;
    return with_sign((large ? 1.57079633 : middle ? 0.785398163 : 0.0) + value, x);
}

// The angle of the point (x, y), from -pi to pi.
float arc_tangent(float y, float x) {
    if (is_nan(x) || is_nan(y)) return NAN;
    float across = abs(x), up = abs(y);
    if (is_infinite(x) || is_infinite(y)) {
        across = is_infinite(x) ? 1.0 : 0.0;
        up = is_infinite(y) ? 1.0 : 0.0;
    } else if (across > 1.0e18 || up > 1.0e18) {  // quotients of the largest may underflow
        across *= 1.0e-18;
        up *= 1.0e-18;
    }
    bool steep = up > across;
    float large = steep ? up : across;
    float angle = large > 0.0 ? arc_tangent((steep ? across : up) / large) : 0.0;
    if (steep) angle = 1.57079633 - angle;
    if ((floatBitsToUint(x) & 0x80000000u) != 0u) angle = 3.14159265 - angle;
    return with_sign(angle, y);
}
