// Sobel's gradients of bytes, two pixels an operation. A word of four pixels is taken as two words of
// 16-bit lanes: `even` with pixels 0 and 2, `odd` with pixels 1 and 3. Lanes of a sum are the sums of
// lanes once BIAS has made all of them positive, whatever they borrowed before; it is 8 * 256 in each,
// so that a shift by 3 leaves the gradient's byte. WORDS: WIDTH words of a row, which are computed
// together.
#define LANES 0x00FF00FFu
#define BIAS 0x08000800u
#if WIDTH == 4
#define WORDS uvec4
#define SHIFTED_IN(word, words) uvec4(word, words.xyz)
#define SHIFTED_OUT(words, word) uvec4(words.yzw, word)
#define PLACES(first) (first + uvec4(0, 1, 2, 3))
#define LAST w
#else
#define WORDS uvec2
#define SHIFTED_IN(word, words) uvec2(word, words.x)
#define SHIFTED_OUT(words, word) uvec2(words.y, word)
#define PLACES(first) (first + uvec2(0, 1))
#define LAST y
#endif

// What a row gives to the gradients of the rows about it.
struct Row {
    WORDS across_even, across_odd;  // the right neighbour less the left one
    WORDS along_even, along_odd;    // both of them, and the pixel itself twice
};

// That of `words`, whose neighbours are the last pixel of `before` and the first one of `after`.
Row row_of(uint before, WORDS words, uint after) {
    WORDS even = words & LANES, odd = (words >> 8) & LANES;
    WORDS left = (odd << 16) | (SHIFTED_IN(before >> 8, odd) >> 16);  // of the even: -1 and 1
    WORDS right = (even >> 16) | (SHIFTED_OUT(even, after & 255u) << 16);  // of the odd: 2 and 4
    return Row(odd - left, right - even, left + odd + 2u * even, even + right + 2u * odd);
}

// The bytes of gradients, eightfold.
WORDS bytes_of(WORDS even, WORDS odd) {
    return (((even + BIAS) >> 3) & LANES) | (((odd + BIAS) << 5) & ~LANES);
}

// Ones in the bytes of the words from `first` on that have neighbours to the left and the right.
WORDS within(uint first, uint width) {
    WORDS at = PLACES(first);
    uint last = width - 1u;
    WORDS ends = WORDS(equal(at, WORDS(last >> 2))) * (0xFFu << (8u * (last & 3u)));
    return ~(ends | WORDS(equal(at, WORDS(0u))) * 0xFFu);
}
