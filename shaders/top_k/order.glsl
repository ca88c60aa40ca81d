// Numbers as integers in the order that is asked for: the first number is the greatest integer.
// FLOATS: they are words of floats; LARGEST: the greatest is first.
#ifndef FLOATS
#define FLOATS 1
#endif
#ifndef LARGEST
#define LARGEST 1
#endif
#ifndef HAS_PLACES
#define HAS_PLACES 0
#endif
#include "common/float_key.glsl"

int key_of(int word) {
    int key = FLOATS == 1 ? float_key(word) : word;
    return LARGEST == 1 ? key : ~key;
}
