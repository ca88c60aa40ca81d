// The place that comes at `number` of the result: where two lists in order part is found by bisection
// (merge path; Odeh et al. 2012). Before this file: WORD(i), the word of number i of x, and, where
// there are lists, PLACE(i).
#include "top_k/order.glsl"
#if !HAS_PLACES
#define PLACE(i) (i - begin)
#endif
uniform int sample_rows, n, m, list, most, size, x_row, places_row;
int row_at, begin;  // where x and the lists of the row begin

#define ABSENT 0x7fffffff

int key_at(int i) {
    int place = PLACE(i);
    return place < n ? key_of(WORD(row_at + min(place, n - 1))) : -ABSENT - 1;
}

int merged(int number) {
    int row = number / size, at = number - row * size, pair = at / most, rank = at - pair * most;
    int image = row / sample_rows, in_image = row - image * sample_rows;
    row_at = image * x_row + in_image * n;
#if HAS_PLACES
    begin = image * places_row + in_image * m;
#else
    begin = 0;
#endif
    int first = 2 * pair * list, second = first + list;
    int first_size = min(list, m - first), second_size = clamp(m - second, 0, list);
    if (rank >= first_size + second_size) return ABSENT;
    first += begin;
    second += begin;
    int low = max(rank - second_size, 0), high = min(rank, first_size);  // taken of the first list
    while (low < high) {
        int half_way = (low + high) / 2;
        if (key_at(first + half_way) >= key_at(second + rank - 1 - half_way))
            low = half_way + 1;
        else
            high = half_way;
    }
    int other = rank - low;
    bool is_first = other >= second_size;
    if (!is_first && low < first_size) is_first = key_at(first + low) >= key_at(second + other);
    return PLACE((is_first ? first + low : second + other));
}
