// The word of the low 8 bits of four numbers.
int word_of(ivec4 four) {
    ivec4 bytes = (four & 255) << ivec4(0, 8, 16, 24);
    return bytes.x | bytes.y | bytes.z | bytes.w;
}
