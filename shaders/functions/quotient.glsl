#include "functions/special.glsl"

// a / b, correctly rounded: a driver's own may be off by some ulps. The remainder is exact, as products
// of half as many bits are. Dekker 1971, A Floating-Point Technique for Extending the
// Available Precision.
float rounded_quotient(float a, float b) {
    float found = a / b;
    float least = min(abs(found), min(abs(a), abs(b))), most = max(abs(found), max(abs(a), abs(b)));
    if (is_nan(found) || least < 1e-18 || most > 1e18) return found;
    float high = high_part(found), low = found - high;
    float b_high = high_part(b), b_low = b - b_high;
    float remainder = (((a - high * b_high) - high * b_low) - low * b_high) - low * b_low;
    return found + remainder / b;
}
