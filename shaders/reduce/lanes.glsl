// The reduction of the states of a workgroup's lanes. The includer defines the type STATE and
// `join(STATE, STATE)`, or JOINS_SEVERAL and `joined` after this file; LANES, the lanes of a result; and
// RESULTS, the results of a workgroup.
#include "common/barrier.glsl"
#if LANES >= 1024
#define FEW 32
#elif LANES >= 256
#define FEW 16
#elif LANES >= 64
#define FEW 8
#else
#define FEW 4
#endif
#if LANES > 1
shared STATE states[LANES * RESULTS];

// Joins the states of `count` lanes from `first` on.
#ifdef JOINS_SEVERAL
STATE joined(int first, const int count, int line);
#else
STATE joined(int first, const int count, int line) {
    STATE total = states[first * RESULTS + line];
    for (int i = 1; i < count; ++i) total = join(total, states[(first + i) * RESULTS + line]);
    return total;
}
#endif
#endif

// Joins all lanes' states of result `line`, and returns the total to every lane. All lanes must call it.
STATE reduce_lanes(STATE state, int lane, int line) {
#if LANES == 1
    return state;
#else
    workgroup_barrier();  // others may still read the previous states
    states[lane * RESULTS + line] = state;
    workgroup_barrier();
#if LANES <= FEW
    return joined(0, LANES, line);
#else
    state = joined(lane / FEW * FEW, FEW, line);  // V3D's compiler hangs with an if here
    workgroup_barrier();
    if (lane % FEW == 0) states[lane / FEW * RESULTS + line] = state;
    workgroup_barrier();
    return joined(0, LANES / FEW, line);
#endif
#endif
}
