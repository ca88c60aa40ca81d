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
#include <cell>
