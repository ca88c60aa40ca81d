// Waits for the workgroup: behind it all see what each wrote to shared memory before it. By GLSL ES
// barrier() does both. Where the device's header says that its driver is trusted to
// (BARRIER_SUFFICES), nothing else is called: NVIDIA's memory barrier waits for loads from buffers,
// too, that are on their way.
#ifndef BARRIER_SUFFICES
#define BARRIER_SUFFICES 0
#endif

void wait() {
#if !BARRIER_SUFFICES
    memoryBarrierShared();
#endif
    barrier();
}
