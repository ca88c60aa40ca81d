// The states of all chains, of layers or directions, before the step `step` of a row: those that
// were given before the first, and those that never change; the others as they were stored.
vec4 state_before(int step, int chain, int row, int quad, int which) {
    int own = (chain * batch + row) * quads + quad;
    if (step == 0 || which >= RESULTS) return state[own * STATES + which];
    return result[((step - 1) * chains * batch * quads + own) * RESULTS + which];
}
