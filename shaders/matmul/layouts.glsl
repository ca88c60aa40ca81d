// Default layouts of the operands of matmul: the first that a kernel accepts.
#ifndef X_IN_C
#define X_IN_C 0
#endif
#ifndef WEIGHT_IN_R4
#define WEIGHT_IN_R4 0
#endif
#ifndef WEIGHT_IN_C
#define WEIGHT_IN_C 0
#endif
