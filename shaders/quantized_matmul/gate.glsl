// What a gate is made of: GATE is 0, or the number of the function of the first half of the products, by
// which the other half is multiplied. A result is then made of HALVES rows of weights.
#ifndef GATE
#define GATE 0
#endif
#if GATE
#define HALVES 2
#else
#define HALVES 1
#endif
#if GATE == 1
float gated(float v) {
    return v / (1.0 + exp(clamp(-v, -80.0, 80.0)));
}
#elif GATE == 2
float gated(float v) {
    float inner = clamp(0.7978845608028654 * v * (1.0 + 0.044715 * v * v), -20.0, 20.0);
    return v / (1.0 + exp(-2.0 * inner));
}
#endif
