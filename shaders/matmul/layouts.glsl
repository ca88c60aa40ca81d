// The layouts of operands of matmul, unless the host defines them: the first that a kernel takes.
#ifndef X_IN_C
#define X_IN_C 0
#endif
#ifndef WEIGHT_IN_R4
#define WEIGHT_IN_R4 0
#endif
#ifndef WEIGHT_IN_C
#define WEIGHT_IN_C 0
#endif
