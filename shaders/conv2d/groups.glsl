// How many groups the channels are in, of which each reads its own.
#ifndef GROUPS
#define GROUPS 1
#endif
