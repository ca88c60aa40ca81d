// The word of four numbers, of which the lowest 8 bits count.
int word_of(ivec4 four) {
    ivec4 bytes = (four & 255) << ivec4(0, 8, 16, 24);
    return bytes.x | bytes.y | bytes.z | bytes.w;
}
