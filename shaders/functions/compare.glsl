#include "functions/special.glsl"

// Whether both can be compared: neither is NaN.
bool ordered(float a, float b) {
    return !is_nan(a) && !is_nan(b);
}
