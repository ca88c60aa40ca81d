// The numbers of a prefix sum. FLOATS: floats, else ints. EXCLUSIVE: a result does not include its own
// number. REVERSE: from the last number on. PRODUCT: a prefix product.
#ifndef FLOATS
#define FLOATS 1
#endif
#ifndef EXCLUSIVE
#define EXCLUSIVE 0
#endif
#ifndef REVERSE
#define REVERSE 0
#endif
#ifndef PRODUCT
#define PRODUCT 0
#endif
#if FLOATS
#define NUMBER float
#else
#define NUMBER int
#endif
#if PRODUCT
#define IDENTITY NUMBER(1)
#define BOTH(a, b) ((a) * (b))
#else
#define IDENTITY NUMBER(0)
#define BOTH(a, b) ((a) + (b))
#endif
