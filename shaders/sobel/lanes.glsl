// Sobel's gradients of bytes, two pixels an operation.
#include "sobel/chars.glsl"
#if WIDTH == 4
#define LAST w
#else
#define LAST y
#endif

// The terms of a row in the gradients of it and of the rows above and below.
struct Row {
    CHARS across_even, across_odd;  // right neighbour less left one
    CHARS along_even, along_odd;    // both neighbours, and the pixel twice
};

// The terms of `words`, between the last pixel of `before` and the first one of `after`.
Row row_of(uint before, CHARS words, uint after) {
    CHARS even = words & LANES, odd = (words >> 8) & LANES;
    CHARS left = (odd << 16) | (SHIFTED_IN(before >> 8, odd) >> 16);  // of the even: -1 and 1
    CHARS right = (even >> 16) | (SHIFTED_OUT(even, after & 255u) << 16);  // of the odd: 2 and 4
    return Row(odd - left, right - even, left + odd + 2u * even, even + right + 2u * odd);
}
