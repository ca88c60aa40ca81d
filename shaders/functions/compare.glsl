#include "functions/special.glsl"

// Whether two can be compared: none is NaN.
bool ordered(float a, float b) {
    return !is_nan(a) && !is_nan(b);
}
