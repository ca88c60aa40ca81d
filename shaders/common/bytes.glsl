// Numbers of 8 bits, four in a word, the first of them in its lowest byte: uint8 and bool are
// unsigned, int8 is signed.
ivec4 four_unsigned(int word) {
    return ivec4(word, word >> 8, word >> 16, word >> 24) & 255;
}

ivec4 four_signed(int word) {
    return ivec4(word << 24, word << 16, word << 8, word) >> 24;
}

// Number `i` of an array, from its word i / 4.
int one_unsigned(int word, int i) {
    return (word >> (8 * (i & 3))) & 255;
}

int one_signed(int word, int i) {
    return (word << (24 - 8 * (i & 3))) >> 24;
}
