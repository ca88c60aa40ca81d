// What both kernels of a step know: GATES sums, INPUTS inputs and STATES states of each unit, of
// which SUMMED is summed, and RESULTS new ones. The host writes new_state, of one unit.
#ifndef GATES
#define GATES 4
#define INPUTS 4
#define STATES 2
#define SUMMED 0
#define RESULTS 2
#endif
uniform int steps, batch, quads, units, now;  // quads: fours of units, of which `units` are there
// A component of four that the compiler does not know. By an index, NVIDIA's has a vector of shared
// memory or of registers in memory of its own, and takes a tenth of a microsecond to read it.
float component(vec4 v, int i) {
    return i < 2 ? (i == 0 ? v.x : v.y) : i == 2 ? v.z : v.w;
}

uint component(uvec4 v, int i) {
    return i < 2 ? (i == 0 ? v.x : v.y) : i == 2 ? v.z : v.w;
}

#include <cell>
