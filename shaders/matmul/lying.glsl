// How the operands of matmul lie, unless the host says so: as the first layout that a kernel takes.
#ifndef X_IN_C
#define X_IN_C 0
#endif
#ifndef WEIGHT_IN_R4
#define WEIGHT_IN_R4 0
#endif
#ifndef WEIGHT_IN_C
#define WEIGHT_IN_C 0
#endif
