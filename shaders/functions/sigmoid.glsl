#include "common/nan.glsl"

float sigmoid(float x) {
    float decay = exp_minus(abs(x));
    return is_nan(x) ? x : (x < 0.0 ? decay : 1.0) / (1.0 + decay);
}
