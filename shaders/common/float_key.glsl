// The order of floats, by their words, as that of integers: -0 is 0, and NaN the greatest.
int float_key(int word) {
    int size = word & 0x7fffffff;
    int key = size == 0 ? 0 : word < 0 ? ~size : size;
    return size > 0x7f800000 ? 0x7fffffff : key;
}
