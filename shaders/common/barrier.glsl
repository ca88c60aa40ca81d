// A barrier of the workgroup, after which all invocations see what each has written to shared memory.
// By the GLSL ES specification barrier() is enough. Nothing else is called where the device's header
// trusts the driver with that (BARRIER_SUFFICES): NVIDIA's memory barrier also waits for loads from
// buffers that are in flight.
#ifndef BARRIER_SUFFICES
#define BARRIER_SUFFICES 0
#endif

void workgroup_barrier() {
#if !BARRIER_SUFFICES
    memoryBarrierShared();
#endif
    barrier();
}
