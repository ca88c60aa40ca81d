// Where the numbers of a result lie. The axes that are kept, KEPT of them, and those that are
// reduced, REDUCED of them, are walked by themselves; each operand has its strides along both.
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

int first[OPERANDS];  // where the numbers of the result in hand begin
int at[OPERANDS];     // where the one in hand is

// Take result `o` in hand.
void take_result(int o) {
    for (int k = 0; k < OPERANDS; ++k) first[k] = 0;
    for (int d = KEPT - 1; d >= 0; --d) {
        int rest = o / kept[d];
        for (int k = 0; k < OPERANDS; ++k)
            first[k] += (o - rest * kept[d]) * kept_strides[k * KEPT + d];
        o = rest;
    }
}

// Take its number `i` in hand.
void take_number(int i) {
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
