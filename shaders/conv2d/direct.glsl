// Direct convolution of planar images: PX results of a row by four output channels an invocation. The part of
// an input row that the windows read is loaded once into registers and serves every tap of the kernel's row
// (Rovder 2019, section 5.1, convolves one pixel a work-item in NHWC). With POOL the convolution is pooled by
// windows of 2 x 2.
#include "common/launch.glsl"
#include "common/window.glsl"
#include "common/pooled.glsl"
#include "conv2d/weight.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y, local_size_z = WG_Z) in;
layout(std430, binding = 0) buffer X { float x[]; };
layout(std430, binding = 2) buffer Out { float result[]; };
#include <epilogue>
uniform int n, c, h, w, o, oh, ow;
uniform int x_row, out_row;
#define WIDE (SIDE * PX)  // pixels of a row, in SIDE rows
#define FINISHED(i) epilogue(sum[i], 0, quad)  // its operands have a number for each channel
// Columns of an input row that the windows of these pixels span.
#define SPAN ((WIDE - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)

// The number at a column of the row that begins at `start`; 0 outside of the image.
float pixel(int start, int column, bool inside) {
    // Unconditional: a load that depends on a condition is waited for before the next is issued.
    float value = x[start + clamp(column, 0, w - 1)];
    return inside && column >= 0 && column < w ? value : 0.0;
}

// The weights of four output channels at a tap, which is counted through all input channels.
vec4 weights_at(int quad, int tap) {
    int numbers = c * KERNEL_H * KERNEL_W;
#if PLAIN
    int first = quad * 4 * numbers + tap, last = (o - 1 - quad * 4) * numbers;
    return vec4(weight[first], weight[first + min(numbers, last)],
                weight[first + min(2 * numbers, last)], weight[first + min(3 * numbers, last)]);
#else
    return WEIGHT(quad * numbers + tap);
#endif
}

void convolve(int image, int quad, int left, int y) {
    vec4 sum[SIDE * WIDE];
    for (int i = 0; i < SIDE * WIDE; ++i) sum[i] = vec4(0.0);
    int first = left * SIDE * STRIDE_W - PADDING_LEFT;
    for (int channel = 0; channel < c; ++channel) {
        for (int ky = 0; ky < KERNEL_H; ++ky) {
            int tap = (channel * KERNEL_H + ky) * KERNEL_W, start[SIDE];
            int top = y * SIDE * STRIDE_H - PADDING_TOP + ky * DILATION_H;
#if POOL
            bool inside[SIDE];
            for (int i = 0; i < SIDE; ++i) {
                int row = top + i * STRIDE_H;
                inside[i] = row >= 0 && row < h;
                start[i] = image * x_row + (channel * h + clamp(row, 0, h - 1)) * w;
            }
#define INSIDE(i) inside[i]
#else
            if (top < 0 || top >= h) continue;
            start[0] = image * x_row + (channel * h + top) * w;
#define INSIDE(i) true
#endif
#if SPAN <= 16
            float line[SIDE * SPAN];
            for (int i = 0; i < SIDE * SPAN; ++i)
                line[i] = pixel(start[i / SPAN], first + i % SPAN, INSIDE(i / SPAN));
#define X_IN_WINDOW(i, column) line[(i) * SPAN + (column)]
#else
#define X_IN_WINDOW(i, column) pixel(start[i], first + (column), INSIDE(i))
#endif
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                vec4 weights = weights_at(quad, tap + kx);
                for (int i = 0; i < SIDE; ++i)
                    for (int p = 0; p < WIDE; ++p)
                        sum[i * WIDE + p] += X_IN_WINDOW(i, p * STRIDE_W + kx * DILATION_W) * weights;
            }
        }
    }
    int plane = oh * ow;
    int place = image * out_row + quad * 4 * plane + y * ow + left;
    for (int p = 0; p < PX; ++p) {
        if (left + p >= ow) break;
#if POOL
        vec4 one = FINISHED(2 * p), two = FINISHED(2 * p + 1);
        vec4 three = FINISHED(WIDE + 2 * p), four = FINISHED(WIDE + 2 * p + 1);
        vec4 value = POOLED(one, two, three, four);
#else
        vec4 value = FINISHED(p);
#endif
        result[place + p] = value.x;
        if (quad * 4 + 1 < o) result[place + plane + p] = value.y;
        if (quad * 4 + 2 < o) result[place + 2 * plane + p] = value.z;
        if (quad * 4 + 3 < o) result[place + 3 * plane + p] = value.w;
    }
}

void main() {
    int left = int(INVOCATION_ID.x) * PX;
    int y = int(INVOCATION_ID.y);
    if (left >= ow || y >= oh) return;
    int quads = (o + 3) / 4;
    int stride = int(WORKGROUP_COUNT.z) * WG_Z;
    for (int z = int(INVOCATION_ID.z); z < quads * n; z += stride)
        convolve(z / quads, z % quads, left, y);
}
