#include "functions/special.glsl"

// Drivers may compute it from the inverse root, which is undefined for 0 and infinity.
float square_root(float x) {
    return is_nan(x) || x == 0.0 ? x : x < 0.0 ? NAN : is_infinite(x) ? x : sqrt(x);
}

float inverse_root(float x) {
    return is_nan(x) ? x
        : x == 0.0 ? with_sign(INF, x)
        : x < 0.0 ? NAN
        : is_infinite(x) ? 0.0
        : inversesqrt(x);
}
