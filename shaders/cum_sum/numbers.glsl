// What is added up. FLOATS: floats, else ints. EXCLUSIVE: without the number at the place itself;
// REVERSE: from the last one on. PRODUCT: multiplied instead.
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
