/* Loads that each say where the next one is, as LMBench's lat_mem_rd makes them. */
#include <stddef.h>

void *chase(void **place, size_t loads)
{
    while (loads--)
        place = *place;
    return place;
}
