// Rotary embedding: the numbers of a token's head are rotated by a table of cosines and sines (HAS_ROTARY).
// Number i is rotated with number i + rotary_dim / 2 or, where PAIRS is 1, with its neighbour. The includer
// defines NUMBER(head, i), number i of a head, and TABLE(row, i), number i of the table's row of the position.
#ifndef HAS_ROTARY
#define HAS_ROTARY 0
#endif
#ifndef PAIRS
#define PAIRS 0
#endif
uniform int rotary_dim;  // numbers of a head that are rotated

float rotated(int head, int row, int i) {
    float own = NUMBER(head, i);
#if HAS_ROTARY
    if (i >= rotary_dim) return own;
    int angles = rotary_dim / 2;
#if PAIRS
    int angle = i / 2;
    bool first = (i & 1) == 0;
    int partner = first ? i + 1 : i - 1;
#else
    bool first = i < angles;
    int angle = first ? i : i - angles;
    int partner = first ? i + angles : i - angles;
#endif
    float other = NUMBER(head, partner);
    return own * TABLE(row, angle) + (first ? -other : other) * TABLE(row, angles + angle);
#else
    return own;
#endif
}
