// Shared by the kernels of recurrences. A unit has GATES sums over the state SUMMED of all units,
// INPUTS inputs, STATES states and RESULTS new states. The host generates new_state of one unit.
#ifndef GATES
#define GATES 4
#define INPUTS 4
#define STATES 2
#define SUMMED 0
#define RESULTS 2
#endif
uniform int steps, batch, quads, units, now;  // quads: of units, of which `units` are no padding
// Component i of v, for an i that is no constant. Where v is indexed instead, NVIDIA's compiler copies
// it to local memory, and to read it takes a tenth of a microsecond.
float component(vec4 v, int i) {
    return i < 2 ? (i == 0 ? v.x : v.y) : i == 2 ? v.z : v.w;
}

uint component(uvec4 v, int i) {
    return i < 2 ? (i == 0 ? v.x : v.y) : i == 2 ? v.z : v.w;
}

#include <cell>
