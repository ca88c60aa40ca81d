#define NAN uintBitsToFloat(0x7fc00000u)
#define LEAST uintBitsToFloat(0xff7fffffu)  // the least finite number

// By bits, since compilers may assume that comparisons never see a NaN.
bool is_nan(float x) {
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

// Neither infinite nor NaN: a valid argument of exp, pow and the like.
bool is_finite(float x) {
    return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u;
}

// exp(-x) for x >= 0: it is 0 at 104, beyond which drivers differ.
float exp_minus(float x) {
    return exp(-min(x, 104.0));
}

vec4 exp_minus(vec4 x) {
    return exp(-min(x, vec4(104.0)));
}

// The greater of two, NaN if either is, as numpy.maximum.
float greater(float a, float b) {
    return is_nan(a) ? a : is_nan(b) ? b : max(a, b);
}

vec4 greater(vec4 a, vec4 b) {
    return vec4(greater(a.x, b.x), greater(a.y, b.y), greater(a.z, b.z), greater(a.w, b.w));
}

// The greatest component, NaN if one is.
float greatest_of(vec4 v) {
    return greater(greater(v.x, v.y), greater(v.z, v.w));
}
