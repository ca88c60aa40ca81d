// Indices of the workgroup and of the invocation in the whole launch. A launch that a driver computes wrong,
// or that its watchdog would end, is dispatched IN_PARTS: each begins at `first_group` of `all_groups`.
#ifndef IN_PARTS
#define IN_PARTS 0
#endif
#if IN_PARTS
uniform highp uvec3 first_group, all_groups;
#define WORKGROUP_ID (gl_WorkGroupID + first_group)
#define WORKGROUP_COUNT all_groups
#define INVOCATION_ID (gl_GlobalInvocationID + first_group * gl_WorkGroupSize)
#else
#define WORKGROUP_ID gl_WorkGroupID
#define WORKGROUP_COUNT gl_NumWorkGroups
#define INVOCATION_ID gl_GlobalInvocationID
#endif
