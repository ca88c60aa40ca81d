// A result's sum. X, INDEX, WEIGHT: the operands' numbers. NUMBER: what a result is, a float or
// four neighbouring ones. INNER: how many lie from one place along the axis to the next.
#ifndef NUMBER
#define NUMBER float
#endif
#ifndef INNER
#define INNER inner
#endif
uniform int taps, count, extent, inner;  // inner: in floats

NUMBER sum_at(int i) {
    int row = i / INNER, within = i - row * INNER;
    int before = row / count, place = row - before * count;
    int first = before * extent * INNER + within;
    NUMBER sum = NUMBER(0.0);
    for (int tap = 0; tap < taps; ++tap) {
        int at = tap * count + place;
        int there = clamp(INDEX(at), 0, extent - 1);
        sum += WEIGHT(at) * X(first + there * INNER);
    }
    return sum;
}
