// Where the elements of a result are in memory. KEPT axes are kept and REDUCED ones reduced; each
// operand has strides along all of them.
#ifndef OPERANDS
#define OPERANDS 1
#endif
#ifndef KEPT
#define KEPT 1
#endif
#ifndef REDUCED
#define REDUCED 1
#endif
uniform int kept[KEPT], reduced[REDUCED];
uniform int kept_strides[OPERANDS * KEPT], reduced_strides[OPERANDS * REDUCED];

int first[OPERANDS];  // where the elements of the current result begin
int at[OPERANDS];     // where the current element is

// Sets `first` for result `o`.
void locate_result(int o) {
    for (int k = 0; k < OPERANDS; ++k) first[k] = 0;
    for (int d = KEPT - 1; d >= 0; --d) {
        int rest = o / kept[d];
        for (int k = 0; k < OPERANDS; ++k)
            first[k] += (o - rest * kept[d]) * kept_strides[k * KEPT + d];
        o = rest;
    }
}

// Sets `at` for its element `i`.
void locate_element(int i) {
#if REDUCED == 1
    for (int k = 0; k < OPERANDS; ++k) at[k] = first[k] + i * reduced_strides[k];
#else
    for (int k = 0; k < OPERANDS; ++k) at[k] = first[k];
    for (int d = REDUCED - 1; d >= 0; --d) {
        int rest = i / reduced[d];
        for (int k = 0; k < OPERANDS; ++k)
            at[k] += (i - rest * reduced[d]) * reduced_strides[k * REDUCED + d];
        i = rest;
    }
#endif
}
