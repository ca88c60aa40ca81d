// Numbers as integers in the order that is asked for: the first number is the greatest integer.
// FLOATS: they are floats, of which NaN is the greatest and -0 is 0; LARGEST: the greatest is first.
#ifndef FLOATS
#define FLOATS 1
#endif
#ifndef LARGEST
#define LARGEST 1
#endif
#ifndef HAS_PLACES
#define HAS_PLACES 0
#endif

int key_of(int word) {
#if FLOATS
    int size = word & 0x7fffffff;
    int key = size == 0 ? 0 : word < 0 ? ~size : size;
    if (size > 0x7f800000) key = 0x7fffffff;
#else
    int key = word;
#endif
    return LARGEST == 1 ? key : ~key;
}
