// x over a power of what the squares of its neighbours sum up to. `alpha` is already divided by SIZE.
#ifndef SIZE
#define SIZE 5
#endif
#define BEFORE (SIZE / 2)         // channels before x's own
#define BEHIND ((SIZE - 1) / 2)
#include "common/nan.glsl"
uniform float alpha, beta, k;

float normed(float x, float squares) {
    float base = k + alpha * squares;
    // pow is not defined for every base; this one is 0 or greater, or NaN.
    float power = 1.0;
    if (beta > 0.0) power = !is_finite(base) ? base : base > 0.0 ? pow(base, beta) : 0.0;
    return x / power;
}
