// The reduction of the states of a workgroup's lanes. The includer defines the type STATE and
// `join(STATE, STATE)`, or JOINS_SEVERAL and `joined` after this file; LANES, the lanes of a result; and
// RESULTS, the results of a workgroup. With JOINS_SUBGROUP it defines IDENTITY, the neutral state, and
// `reduce_subgroup(STATE)`, which returns the total of a subgroup to its lanes.
#include "common/barrier.glsl"
#define SUBGROUPS 0  // of the lanes of a result; 0 where their states go through shared memory
#ifdef JOINS_SUBGROUP
// Whole subgroups, and no more of them than the lanes of one, which join their states.
#if LANES == SUBGROUP_SIZE || RESULTS == 1 && LANES % SUBGROUP_SIZE == 0 && LANES <= SUBGROUP_SIZE * SUBGROUP_SIZE
#undef SUBGROUPS
#define SUBGROUPS (LANES / SUBGROUP_SIZE)
#endif
#endif
#if LANES >= 1024
#define FEW 32
#elif LANES >= 256
#define FEW 16
#elif LANES >= 64
#define FEW 8
#else
#define FEW 4
#endif
#if SUBGROUPS > 1
shared STATE states[SUBGROUPS];
#elif !SUBGROUPS && LANES > 1
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
#elif SUBGROUPS
    state = reduce_subgroup(state);
#if SUBGROUPS > 1
    workgroup_barrier();  // others may still read the previous states
    if (subgroupElect()) states[gl_SubgroupID] = state;
    workgroup_barrier();
    int i = int(gl_SubgroupInvocationID);
    state = IDENTITY;
    if (i < SUBGROUPS) state = states[i];
    state = reduce_subgroup(state);
#endif
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
