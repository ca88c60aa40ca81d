// Sort keys: the number that comes first has the greatest integer.
// FLOATS: the numbers are words of floats; LARGEST: the greatest number comes first.
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
