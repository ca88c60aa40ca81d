// What CLBlast lacks of a network's layers; one work item a result.

float apply(float x, int code) // the CODES of clblast_network.py
{
    if (code == 1) return 1.0f / (1.0f + exp(-x));
    if (code == 2) return x < 0.0f ? 0.0f : x; // NaN stays NaN
    if (code == 3) return tanh(x);
    return x;
}

kernel void activate(global const float *x, global float *y, int code)
{
    size_t i = get_global_id(0);
    y[i] = apply(x[i], code);
}

// In place: y is what the GEMM left.
kernel void add_bias(global float *y, global const float *bias, int channels, int pixels, int code)
{
    size_t i = get_global_id(0);
    y[i] = apply(y[i] + bias[i / pixels % channels], code);
}

// Windows without padding.
kernel void pool(global const float *x, global float *y, int h, int w, int oh, int ow,
                 int kh, int kw, int sh, int sw, int average)
{
    size_t i = get_global_id(0);
    int column = i % ow, row = i / ow % oh;
    global const float *from = x + i / ow / oh * h * w + row * sh * w + column * sw;
    float best = from[0], sum = 0.0f;
    for (int ky = 0; ky < kh; ++ky)
        for (int kx = 0; kx < kw; ++kx) {
            float value = from[ky * w + kx];
            best = value <= best ? best : value;
            sum += value;
        }
    y[i] = average ? sum / (kh * kw) : best;
}

// One work item a row: ten or a thousand classes.
kernel void softmax(global const float *x, global float *y, int width)
{
    size_t row = get_global_id(0) * width;
    float most = x[row], sum = 0.0f;
    for (int i = 1; i < width; ++i) most = fmax(most, x[row + i]);
    for (int i = 0; i < width; ++i) sum += y[row + i] = exp(x[row + i] - most);
    for (int i = 0; i < width; ++i) y[row + i] /= sum;
}
