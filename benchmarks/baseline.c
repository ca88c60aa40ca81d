// The baseline network of Rovder 2017, chapter 6, on the CPU: one thing after the other, in the loops
// of his kernels. Matrices are row major, samples are columns.
#include <math.h>
#include <stddef.h>

// result: rows x columns. a: rows x depth. b: depth x columns (source 6.1).
void matmul(const float *a, const float *b, float *result, int rows, int columns, int depth) {
    for (int row = 0; row < rows; ++row)
        for (int column = 0; column < columns; ++column) {
            float sum = 0.0f;
            for (int i = 0; i < depth; ++i)
                sum += a[(size_t)row * depth + i] * b[(size_t)i * columns + column];
            result[(size_t)row * columns + column] = sum;
        }
}

// matrix: rows x columns, in place. bias: a number for each row (source 6.3).
void bias(float *matrix, const float *bias, int rows, int columns) {
    for (int row = 0; row < rows; ++row)
        for (int column = 0; column < columns; ++column)
            matrix[(size_t)row * columns + column] += bias[row];
}

// matrix: count numbers, in place (source 6.2).
void activation(float *matrix, int count) {
    for (int i = 0; i < count; ++i) matrix[i] = 1.0f / (1.0f + expf(-matrix[i]));
}
