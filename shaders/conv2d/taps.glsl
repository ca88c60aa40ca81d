// The first tap of those `apart` that meets `size` places, and the one behind the last. begin: where the
// first tap of the first window lies. end: where that of the last one does.
ivec2 taps(int begin, int end, int size, int apart, int kernel) {
    int first = (max(-end, 0) + apart - 1) / apart;
    return ivec2(first, min((max(size - begin, 0) + apart - 1) / apart, kernel));
}
