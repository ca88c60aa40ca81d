#include "common/nan.glsl"

float magnitude(float x) {
    return uintBitsToFloat(floatBitsToUint(x) & 0x7fffffffu);
}

int magnitude(int x) {
    return x < 0 ? -x : x;
}

float signum(float x) {
    return is_nan(x) ? x : x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : 0.0;
}

int signum(int x) {
    return x > 0 ? 1 : x < 0 ? -1 : 0;
}
