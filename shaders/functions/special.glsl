#include "common/nan.glsl"
#define INF uintBitsToFloat(0x7f800000u)

bool is_infinite(float x) {
    return (floatBitsToUint(x) & 0x7fffffffu) == 0x7f800000u;
}

// The magnitude of x with the sign of `from`, by bits.
float with_sign(float x, float from) {
    return uintBitsToFloat((floatBitsToUint(x) & 0x7fffffffu) | (floatBitsToUint(from) & 0x80000000u));
}

// The upper 12 bits of a float's mantissa (Dekker 1971). Products of two such are exact, and compilers
// see no sums to reorder.
float high_part(float x) {
    return uintBitsToFloat(floatBitsToUint(x) & 0xfffff000u);
}

// A difference of at most 16 bits, which no compiler takes apart: NVIDIA's makes a - (b - c) an
// (a + c) - b where it has a + c, and what was rounded away is lost; it does not look through a mask.
float keep_rounding(float x) {
    return uintBitsToFloat(floatBitsToUint(x) & 0xffffff00u);
}
