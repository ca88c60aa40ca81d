#version 310 es
// B^T d B of the patches of channels-last images: one channel of a tile an invocation, or four where x
// is a texture (X_TEXTURE). The matrices are those of glnn/graph/operators/winograd.py.
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
#include "common/x_channels.glsl"
layout(std430, binding = 1) buffer Out { VALUE result[]; };
uniform int c, h, w, tiles_down, tiles_across;
uniform int tiles, first_tile;  // of this launch
uniform int x_first, x_pixel, out_row;  // floats

VALUE[WINDOW] transform(VALUE d[WINDOW]) {
#if TILE == 2
    return VALUE[WINDOW](d[2] - d[0], d[1] + d[2], d[2] - d[1], d[3] - d[1]);
#else
    VALUE even = d[4] - 2.0 * d[2], odd = 0.70710678 * d[3] - 1.41421356 * d[1];
    VALUE even2 = d[4] - 0.5 * d[2], odd2 = 1.41421356 * d[3] - 0.70710678 * d[1];
    return VALUE[WINDOW](d[0] - 2.5 * d[2] + d[4], even + odd, even - odd, even2 + odd2,
                          even2 - odd2, d[1] - 2.5 * d[3] + d[5]);
#endif
}

void main() {
    int channel = int(INVOCATION_ID.x);  // or the quad of channels
    int tile = int(INVOCATION_ID.y);
    if (channel >= (c + CHANNELS - 1) / CHANNELS || tile >= tiles) return;
    int image = (first_tile + tile) / (tiles_down * tiles_across);
    int tile_of_image = first_tile + tile - image * tiles_down * tiles_across;
    int top = tile_of_image / tiles_across * TILE - PADDING_TOP;
    int left = tile_of_image % tiles_across * TILE - PADDING_LEFT;

    VALUE patch_rows[WINDOW * WINDOW];
    for (int i = 0; i < WINDOW; ++i) {
        int row = top + i;
        VALUE line[WINDOW];
        for (int j = 0; j < WINDOW; ++j) {
            int column = left + j;
            bool inside = row >= 0 && row < h && column >= 0 && column < w;
            int offset = (x_first + ((image * h + row) * w + column) * x_pixel) / CHANNELS + channel;
            VALUE value = X(inside ? offset : 0);
            line[j] = inside ? value : VALUE(0.0);
        }
        line = transform(line);
        for (int j = 0; j < WINDOW; ++j) patch_rows[i * WINDOW + j] = line[j];
    }
    for (int j = 0; j < WINDOW; ++j) {
        VALUE line[WINDOW];
        for (int i = 0; i < WINDOW; ++i) line[i] = patch_rows[i * WINDOW + j];
        line = transform(line);
        for (int i = 0; i < WINDOW; ++i)
            result[((i * WINDOW + j) * tiles + tile) * (out_row / CHANNELS) + channel] = line[i];
    }
}
