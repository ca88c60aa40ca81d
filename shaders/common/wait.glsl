// Waits for the workgroup: behind it all see what each wrote to shared memory before it. By GLSL ES
// barrier() does both; where a driver is known to (BARRIER_SUFFICES, of the device's header) it is by
// itself, since NVIDIA's memory barrier also waits for loads from buffers that are on their way.
#ifndef BARRIER_SUFFICES
#define BARRIER_SUFFICES 0
#endif

void wait() {
#if !BARRIER_SUFFICES
    memoryBarrierShared();
#endif
    barrier();
}
