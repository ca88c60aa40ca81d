#include "functions/special.glsl"

// The error function, to 2.5 ulp: polynomials by N. Juffa.
float error_function(float x) {
    float size = abs(x), square = x * x;
    float near = -5.96761703e-4;
    near = near * square + 4.99119423e-3;
    near = near * square - 2.67681349e-2;
    near = near * square + 1.12819925e-1;
    near = near * square - 3.76125336e-1;
    near = near * square + 1.28379166e-1;
    float far = -1.72853470e-5;
    float t = is_finite(x) && size < 4.0 ? size : 4.0;
    far = far * t + 3.83197126e-4;
    far = far * t - 3.88396438e-3;
    far = far * t + 2.42546219e-2;
    far = far * t - 1.06777877e-1;
    far = far * t - 6.34846687e-1;
    far = far * t - 1.28717512e-1;
    return is_nan(x) ? x : size > 0.927734375 ? with_sign(1.0 - exp(far * t - t), x) : (near + 1.0) * x;
}
