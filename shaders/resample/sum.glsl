// A result's sum. X, INDEX, WEIGHT: the operands' numbers.
uniform int taps, count, extent, inner;  // inner: numbers from one place along the axis to the next

float sum_at(int i) {
    int row = i / inner, within = i - row * inner;
    int before = row / count, place = row - before * count;
    int first = before * extent * inner + within;
    float sum = 0.0;
    for (int tap = 0; tap < taps; ++tap) {
        int at = tap * count + place;
        int there = clamp(INDEX(at), 0, extent - 1);
        sum += WEIGHT(at) * X(first + there * inner);
    }
    return sum;
}
