// What the lanes of a workgroup know of a result, put together. Before this file: STATE, a type;
// `join(STATE, STATE)`, or JOINS_SEVERAL where the kernel has a `joined` of its own behind it; LANES,
// how many share a result; RESULTS, how many results a workgroup has.
#include "common/wait.glsl"
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

// Of `count` lanes from `first` on.
#ifdef JOINS_SEVERAL
STATE joined(int first, const int count, int line);
#else
STATE joined(int first, const int count, int line) {
    STATE whole = states[first * RESULTS + line];
    for (int i = 1; i < count; ++i) whole = join(whole, states[(first + i) * RESULTS + line]);
    return whole;
}
#endif
#endif

// All lanes' states of result `line` together, which every lane gets. To be called by all of them.
STATE reduce_lanes(STATE own, int lane, int line) {
#if LANES == 1
    return own;
#else
    wait();  // others may still read what was there before
    states[lane * RESULTS + line] = own;
    wait();
#if LANES <= FEW
    return joined(0, LANES, line);
#else
    own = joined(lane / FEW * FEW, FEW, line);  // by all: V3D's compiler does not end with an if here
    wait();
    if (lane % FEW == 0) states[lane / FEW * RESULTS + line] = own;
    wait();
    return joined(0, LANES / FEW, line);
#endif
#endif
}
