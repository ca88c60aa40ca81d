// A barrier of the workgroup, after which all invocations see what each has written to shared memory. By
// the GLSL ES specification barrier() is enough. Where the device's header says that the driver is trusted
// with that (BARRIER_SUFFICES), nothing else is called: NVIDIA's memory barrier also waits for loads from
// buffers that are in flight.
#ifndef BARRIER_SUFFICES
#define BARRIER_SUFFICES 0
#endif

void wait() {
#if !BARRIER_SUFFICES
    memoryBarrierShared();
#endif
    barrier();
}
