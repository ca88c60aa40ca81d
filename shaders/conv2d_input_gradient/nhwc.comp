#version 310 es
// A convolution's gradient by what it convolves, channels last: PX places of a row by four channels
// an invocation.
#ifndef WG_X
#define WG_X 16
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef PX
#define PX 4
#endif
#include "common/launch.glsl"
#include "common/first_of.glsl"
#include "common/window.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
layout(std430, binding = 0) buffer Dy { vec4 dy[]; };
layout(std430, binding = 1) buffer Weight { vec4 weight[]; };
layout(std430, binding = 2) buffer Out { vec4 result[]; };
#include <epilogue>
uniform int n, c, h, w, o, oh, ow;
#include "conv2d_input_gradient/columns.glsl"
vec4 sum[PX];

// What one tap, whose weights begin at `tap`, gives to the places that meet a row of dy from `column`
// on. start: the row's first vec4.
void add_tap(int start, int column, int tap, int quads, int dy_quads) {
    for (int group = 0; group < dy_quads; ++group) {
        int at = tap + group * 4 * quads;
        int last = (o - 1 - group * 4) * quads;  // weights of channels that are not there: any others
        vec4 w0 = weight[at], w1 = weight[at + min(quads, last)];
        vec4 w2 = weight[at + min(2 * quads, last)], w3 = weight[at + min(3 * quads, last)];
        for (int p = 0; p < PX; ++p) {
            int x = column + p;
            bool inside = x >= 0 && x < ow;
            vec4 a = dy[start + clamp(x, 0, ow - 1) * dy_quads + group];
            a = first_of(a, inside ? o - group * 4 : 0);
            sum[p] += a.x * w0 + a.y * w1 + a.z * w2 + a.w * w3;
        }
    }
}

void gather(int image, int row, int left, int quad, int quads) {
    int dy_quads = (o + 3) / 4;
    for (int p = 0; p < PX; ++p) sum[p] = vec4(0.0);
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        int y = dy_row_of(row, ky);
        if (y < 0) continue;
        int start = (image * oh + y) * ow * dy_quads;
        for (int kx = 0; kx < KERNEL_W; ++kx) {
            int column = dy_column_of(left, kx);
            if (column == NO_COLUMN) continue;
            add_tap(start, column, (ky * KERNEL_W + kx) * o * quads + quad, quads, dy_quads);
        }
    }
    int place = ((image * h + row) * w + left) * quads + quad;
    for (int p = 0; p < PX; ++p) {
        if (left + p * STRIDE_W >= w) break;
        int at = place + p * STRIDE_W * quads;
        result[at] = epilogue(sum[p], at, quad);
    }
}

void main() {
    int quads = (c + 3) / 4;
    int quad = int(INVOCATION_ID.x);
    if (quad >= quads) return;
    int across = PLACE_BLOCKS * STRIDE_W;
    int stride = int(WORKGROUP_COUNT.y) * WG_Y;
    for (int i = int(INVOCATION_ID.y); i < n * h * across; i += stride) {
        int row = i / across;
        int image = row / h;
        gather(image, row - image * h, first_column(i - row * across), quad, quads);
    }
}
