// Threefry-2x32 of 20 rounds: Salmon et al. 2011, section 4.3. As glnn/graph/threefry.py.

void threefry_round(inout uint x, inout uint y, int by) {
    x += y;
    y = ((y << by) | (y >> (32 - by))) ^ x;
}

void threefry_even(inout uint x, inout uint y) {
    threefry_round(x, y, 13);
    threefry_round(x, y, 15);
    threefry_round(x, y, 26);
    threefry_round(x, y, 6);
}

void threefry_odd(inout uint x, inout uint y) {
    threefry_round(x, y, 17);
    threefry_round(x, y, 29);
    threefry_round(x, y, 16);
    threefry_round(x, y, 24);
}

// From 0, less than 1: the 24 high bits of the first of two words.
float threefry_uniform(int counter, int counter_high, int key, int key_high) {
    uint k0 = uint(key), k1 = uint(key_high), k2 = 0x1bd11bdau ^ k0 ^ k1;
    uint x = uint(counter) + k0, y = uint(counter_high) + k1;
    threefry_even(x, y);
    x += k1; y += k2 + 1u;
    threefry_odd(x, y);
    x += k2; y += k0 + 2u;
    threefry_even(x, y);
    x += k0; y += k1 + 3u;
    threefry_odd(x, y);
    x += k1; y += k2 + 4u;
    threefry_even(x, y);
    x += k2;
    return float(x >> 8) * (1.0 / 16777216.0);
}
