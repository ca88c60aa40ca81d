// The sum of a result. X, INDEX, WEIGHT: elements of the operands. NUMBER: the type of a result, a
// float or a vec4 of neighbours. INNER: stride of the axis, in NUMBERs.
#ifndef NUMBER
#define NUMBER float
#endif
#ifndef INNER
#define INNER inner
#endif
uniform int taps, count, extent, inner;  // inner: in floats

NUMBER sum_at(int i) {
    int row = i / INNER, within = i - row * INNER;
    int outer = row / count, place = row - outer * count;
    int first = outer * extent * INNER + within;
    NUMBER sum = NUMBER(0.0);
    for (int tap = 0; tap < taps; ++tap) {
        int at = tap * count + place;
        int source = clamp(INDEX(at), 0, extent - 1);
        sum += WEIGHT(at) * X(first + source * INNER);
    }
    return sum;
}
