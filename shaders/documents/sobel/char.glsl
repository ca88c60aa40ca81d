// Gronqvist's kernel of scalars, listing 1.1: a pixel at a time, by 8 loads of a byte. An invocation
// owns a word, so that it makes the gradients of four pixels, one after the other. The stage has
// CHARS_AT(i), the i-th word of the image.
#define CHARS uint
uniform int pixels;  // 4: a loop of a known length is unrolled, and registers of boards run out

int pixel(int y, int column) {
    return int(CHARS_AT(y * words + (column >> 2)) >> (8 * (column & 3))) & 255;
}

// dx and dy of a pixel that has all its neighbours.
ivec2 gradient(int y, int column) {
    int left = pixel(y - 1, column - 1), middle = pixel(y - 1, column);
    int right = pixel(y - 1, column + 1);
    ivec2 sums = ivec2(right - left, right + left + middle * 2);
    left = pixel(y, column - 1);
    right = pixel(y, column + 1);
    sums.x += (right - left) * 2;
    left = pixel(y + 1, column - 1);
    middle = pixel(y + 1, column);
    right = pixel(y + 1, column + 1);
    return (sums + ivec2(right - left, -(right + left + middle * 2))) >> 3;
}

void gradients(int y, int column, out CHARS dx[ROWS], out CHARS dy[ROWS]) {
    dx[0] = dy[0] = 0u;
    if (y == 0 || y == height - 1) return;
    for (int i = 0; i < pixels; ++i) {
        int at = 4 * column + i;
        if (at == 0 || at >= width - 1) continue;
        uvec2 found = uvec2(gradient(y, at) & 255) << (8 * i);
        dx[0] |= found.x;
        dy[0] |= found.y;
    }
}
