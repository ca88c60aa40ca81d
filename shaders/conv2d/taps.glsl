// The range of taps, first and end, that lie inside of a dimension of `size` for any of several windows. begin,
// end: coordinates of the first tap of the first and of the last window.
ivec2 taps(int begin, int end, int size, int dilation, int kernel) {
    int first = (max(-end, 0) + dilation - 1) / dilation;
    return ivec2(first, min((max(size - begin, 0) + dilation - 1) / dilation, kernel));
}
