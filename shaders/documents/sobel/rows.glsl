// Gronqvist's kernels of vectors, listings 1.2 to 1.8: 4 WORDS neighbours in ROWS rows, from ROWS + 2
// rows of the image. LOADS says how a row's left, middle and right neighbours come: 1, each is loaded
// (`char8`, `char16`); 2, all are of one load of 16 pixels (`load16`, of 8 neighbours); 3, left and
// right are loaded, and the middle is made of both (`swizzle`, of 16).
//
// Words stand for vectors of pixels: `uchar8` is a uvec2 and `uchar16` a uvec4, CHARS, four pixels in
// a word. `short8` and `short16` are two of these, with two sums of 16 bits in a word: of pixels 0 and
// 2 in `even`, of 1 and 3 in `odd`.
// A load that begins within a word is of the words that have it, which are shifted together. An
// invocation owns whole words: the document's begins at a pixel with its left neighbours, and stores
// one pixel further on; ours stores at a word, and its left neighbours begin a pixel before.
//
// The stage has CHARS_AT(i), the i-th CHARS of the image, and FIRST_AT(i) and LAST_AT(i), its first
// and its last word.
#define WIDTH WORDS
#include "sobel/chars.glsl"

struct Shorts {
    CHARS even, odd;
};

struct Neighbours {
    Shorts left, middle, right;
};

// convert_short8, convert_short16
Shorts shorts(CHARS pixels) {
    return Shorts(pixels & LANES, (pixels >> 8) & LANES);
}

Shorts plus(Shorts a, Shorts b) {
    return Shorts(a.even + b.even, a.odd + b.odd);
}

Shorts minus(Shorts a, Shorts b) {
    return Shorts(a.even - b.even, a.odd - b.odd);
}

Shorts twice(Shorts a) {
    return Shorts(2u * a.even, 2u * a.odd);
}

// vload8, vload16 one pixel before, and one behind, the CHARS number `at`.
CHARS load_left(int before, int at) {
    CHARS own = CHARS_AT(at);
    return (own << 8) | (SHIFTED_IN(LAST_AT(before), own) >> 24);
}

CHARS load_right(int at, int after) {
    CHARS own = CHARS_AT(at);
    return (own >> 8) | (SHIFTED_OUT(own, FIRST_AT(after)) << 24);
}

// The neighbours in row `y`, or in the last one above or below, of the CHARS in `column`.
Neighbours neighbours(int y, int column) {
    int columns = words / WORDS, row = clamp(y, 0, height - 1) * columns, at = row + column;
    int before = row + max(column - 1, 0), after = row + min(column + 1, columns - 1);
#if LOADS == 1
    CHARS left = load_left(before, at), middle = CHARS_AT(at), right = load_right(at, after);
#elif LOADS == 2
    uvec4 load = uvec4(LAST_AT(before), CHARS_AT(at), FIRST_AT(after));
    CHARS left = (load.yz << 8) | (load.xy >> 24), middle = load.yz;
    CHARS right = (load.yz >> 8) | (load.zw << 24);
#else
    CHARS left = load_left(before, at), right = load_right(at, after);
    uvec2 begins = (left.xy >> 8) | (left.yz << 24), ends = (right.zw << 8) | (right.yz >> 24);
    CHARS middle = uvec4(begins, ends);
#endif
    return Neighbours(shorts(left), shorts(middle), shorts(right));
}

void gradients(int top, int column, out CHARS dx[ROWS], out CHARS dy[ROWS]) {
    Shorts across[ROWS], along[ROWS];
    for (int i = 0; i < ROWS + 2; ++i) {
        Neighbours row = neighbours(top + i - 1, column);
        Shorts difference = minus(row.right, row.left);
        Shorts sum = plus(plus(row.right, row.left), twice(row.middle));
        for (int j = 0; j < ROWS; ++j) {  // the row is the first, second or third of that result
            if (i == j) across[j] = difference;
            if (i == j) along[j] = sum;
            if (i == j + 1) across[j] = plus(across[j], twice(difference));
            if (i == j + 2) across[j] = plus(across[j], difference);
            if (i == j + 2) along[j] = minus(along[j], sum);
        }
    }
    CHARS columns = within(uint(column * WORDS), uint(width));
    for (int j = 0; j < ROWS; ++j) {
        int y = top + j;
        CHARS inner = y > 0 && y < height - 1 ? columns : CHARS(0u);
        dx[j] = bytes_of(across[j].even, across[j].odd) & inner;
        dy[j] = bytes_of(along[j].even, along[j].odd) & inner;
    }
}
