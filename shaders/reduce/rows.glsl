// Rows that are contiguous in each sample: LANES invocations a row, RESULTS rows a workgroup. Four
// neighbours are one vec4 where the extent of a row is a multiple of four (WIDE). With KEPT, a multiple
// of four, a lane loads KEPT numbers at once.
#ifndef LANES
#define LANES 128
#endif
#ifndef RESULTS
#define RESULTS 1
#endif
#ifndef WIDE
#define WIDE 0
#endif
#if WIDE
#define VALUE vec4
#define STEP 4
#else
#define VALUE float
#define STEP 1
#endif
#ifndef KEPT
#define KEPT 0
#endif
#ifndef SUBGROUP_SIZE
#define SUBGROUP_SIZE 0
#endif
#define LOADS (KEPT / STEP)   // of a lane at once
#define PART (LOADS * LANES)  // of a row: what its lanes load at once
#include "common/launch.glsl"
layout(local_size_x = LANES, local_size_y = RESULTS) in;
uniform int rows, extent, sample_rows, x_row, out_row;

int begin, last;  // of the current row; last is 0 past the last row
int out_shift;    // from the index of a number of x to that of the result

void locate_row(int row) {
    int in_sample = row / sample_rows, before = (row - in_sample * sample_rows) * extent;
    begin = (in_sample * x_row + before) / STEP;
    out_shift = (in_sample * out_row + before) / STEP - begin;
    last = row < rows ? begin + extent / STEP : 0;
}
