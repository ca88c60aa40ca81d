// A score s as cap tanh(s / cap), where CAPPED is 1.
#ifndef CAPPED
#define CAPPED 0
#endif
uniform float cap;

float capped(float score) {
#if CAPPED
    float power = exp(2.0 * clamp(score / cap, -20.0, 20.0));
    return cap * (power - 1.0) / (power + 1.0);
#else
    return score;
#endif
}
