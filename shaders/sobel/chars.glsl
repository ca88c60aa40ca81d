// Bytes of an image, and their sums in 16 bits. CHARS: WIDTH words of four pixels, which are computed
// together. Pixels 0 and 2 of a word are two lanes of 16 bits of the word `even`, pixels 1 and 3 those
// of `odd`. Differences borrow across lanes until BIAS makes all lanes positive; it is 8 * 256 in each,
// so that a shift by 3 leaves the gradient's byte.
#define LANES 0x00FF00FFu
#define BIAS 0x08000800u
#if WIDTH == 4
#define CHARS uvec4
#define SHIFTED_IN(word, words) uvec4(word, words.xyz)
#define SHIFTED_OUT(words, word) uvec4(words.yzw, word)
#define PLACES(first) (first + uvec4(0, 1, 2, 3))
#else
#define CHARS uvec2
#define SHIFTED_IN(word, words) uvec2(word, words.x)
#define SHIFTED_OUT(words, word) uvec2(words.y, word)
#define PLACES(first) (first + uvec2(0, 1))
#endif

// The bytes of gradients that are given eightfold.
CHARS bytes_of(CHARS even, CHARS odd) {
    return (((even + BIAS) >> 3) & LANES) | (((odd + BIAS) << 5) & ~LANES);
}

// A mask of the bytes of the words from `first` on that have a left and a right neighbour.
CHARS within(uint first, uint width) {
    CHARS at = PLACES(first);
    uint last = width - 1u;
    CHARS ends = CHARS(equal(at, CHARS(last >> 2))) * (0xFFu << (8u * (last & 3u)));
    return ~(ends | CHARS(equal(at, CHARS(0u))) * 0xFFu);
}
