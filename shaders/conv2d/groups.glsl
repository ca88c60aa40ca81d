// The number of groups of channels.
#ifndef GROUPS
#define GROUPS 1
#endif
