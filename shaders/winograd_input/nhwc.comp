#version 310 es
// B^T d B of the patches of channels-last images, one channel of a tile an invocation, or of texels
// (X_TEXTURE) four. The matrices are those of glnn/graph/operators/winograd.py.
#ifndef WG_X
#define WG_X 32
#endif
#ifndef WG_Y
#define WG_Y 4
#endif
#ifndef TILE
#define TILE 4
#endif
#ifndef PADDING_TOP
#define PADDING_TOP 1
#define PADDING_LEFT 1
#endif
#define WINDOW (TILE + 2)
#include "common/launch.glsl"
layout(local_size_x = WG_X, local_size_y = WG_Y) in;
#include "common/lanes.glsl"
layout(std430, binding = 1) buffer Out { NUMBER result[]; };
uniform int c, h, w, tiles_down, tiles_across;
uniform int tiles, first_tile;  // of this launch
uniform int x_first, x_pixel, out_row;  // floats

NUMBER[WINDOW] transformed(NUMBER d[WINDOW]) {
#if TILE == 2
    return NUMBER[WINDOW](d[2] - d[0], d[1] + d[2], d[2] - d[1], d[3] - d[1]);
#else
    NUMBER even = d[4] - 2.0 * d[2], odd = 0.70710678 * d[3] - 1.41421356 * d[1];
    NUMBER even2 = d[4] - 0.5 * d[2], odd2 = 1.41421356 * d[3] - 0.70710678 * d[1];
    return NUMBER[WINDOW](d[0] - 2.5 * d[2] + d[4], even + odd, even - odd, even2 + odd2,
                          even2 - odd2, d[1] - 2.5 * d[3] + d[5]);
#endif
}

void main() {
    int channel = int(INVOCATION_ID.x);  // or the quad of channels
    int tile = int(INVOCATION_ID.y);
    if (channel >= (c + LANES - 1) / LANES || tile >= tiles) return;
    int image = (first_tile + tile) / (tiles_down * tiles_across);
    int place = first_tile + tile - image * tiles_down * tiles_across;
    int top = place / tiles_across * TILE - PADDING_TOP;
    int left = place % tiles_across * TILE - PADDING_LEFT;

    NUMBER patch_rows[WINDOW * WINDOW];
    for (int i = 0; i < WINDOW; ++i) {
        int row = top + i;
        NUMBER line[WINDOW];
        for (int j = 0; j < WINDOW; ++j) {
            int column = left + j;
            bool inside = row >= 0 && row < h && column >= 0 && column < w;
            int at = (x_first + ((image * h + row) * w + column) * x_pixel) / LANES + channel;
            NUMBER met = X(inside ? at : 0);
            line[j] = inside ? met : NUMBER(0.0);
        }
        line = transformed(line);
        for (int j = 0; j < WINDOW; ++j) patch_rows[i * WINDOW + j] = line[j];
    }
    for (int j = 0; j < WINDOW; ++j) {
        NUMBER line[WINDOW];
        for (int i = 0; i < WINDOW; ++i) line[i] = patch_rows[i * WINDOW + j];
        line = transformed(line);
        for (int i = 0; i < WINDOW; ++i)
            result[((i * WINDOW + j) * tiles + tile) * (out_row / LANES) + channel] = line[i];
    }
}
