"""A peer of the matmul benchmark: CLBlast, the OpenCL BLAS, on a device that pyopencl opens.

pyopencl and libclblast are optional: `why_not` says what is missing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from ctypes.util import find_library
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.errors import GlnnError

Array = NDArray[np.float32]
ROW_MAJOR, NOT_TRANSPOSED = 101, 111  # CLBlastLayout, CLBlastTranspose
WARM_SECONDS = 0.1  # a GPU that idles lowers its clocks
MEASURE_SECONDS = 0.02


class Clblast:
    """CLBlast on one OpenCL device: a GPU where there is one, else a CPU (PoCL)."""

    def __init__(self) -> None:
        """Raises GlnnError where pyopencl, a device or libclblast is missing."""
        self._cl = _pyopencl()
        self._library = _library()
        self._device = _device(self._cl)
        try:
            self._context = self._cl.Context([self._device])
            self._queue = self._cl.CommandQueue(self._context)
        except self._cl.Error as error:
            raise GlnnError(f"OpenCL does not open {self.device}: {error}") from None

    def __enter__(self) -> Clblast:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free what CLBlast compiled: it finds it by the context's address, which may return."""
        try:
            self._queue.finish()
        finally:
            self._library.CLBlastClearCache()

    @property
    def device(self) -> str:
        """The device's name and its platform's."""
        return f"{self._device.name.strip()} ({self._device.platform.name.strip()})"

    def sgemm_seconds(
        self,
        a: Array,
        b: Array,
        repeat: int,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        c: Array | None = None,
    ) -> tuple[float, Array]:
        """Median seconds of one C = alpha A B + beta C on the device, and what one run gives.

        C is zeros where none is given. The timed runs go on from their own C: keep |beta| < 1.
        """
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            raise GlnnError(f"matrices of {a.shape} and {b.shape} have no product")
        m, k, n = *a.shape, b.shape[1]
        start = np.zeros((m, n), np.float32) if c is None else c
        if start.shape != (m, n):
            raise GlnnError(f"C is {start.shape}, not {(m, n)}")
        try:
            left, right = self._upload(a), self._upload(b)
            # The timed C is never read: drivers may keep a result that was read on the host.
            checked, timed = self._upload(start), self._upload(start)
            result = np.empty((m, n), np.float32)
            self._gemm(left, right, checked, (m, n, k), alpha, beta)
            self._cl.enqueue_copy(self._queue, result, checked)

            def many(count: int) -> float:
                self._queue.finish()
                begun = perf_counter()
                for _ in range(count):
                    self._gemm(left, right, timed, (m, n, k), alpha, beta)
                self._queue.finish()
                return perf_counter() - begun

            count = _warm(many)
            return median(many(count) for _ in range(repeat)) / count, result
        except self._cl.Error as error:
            raise GlnnError(f"OpenCL on {self.device}: {error}") from None

    def _upload(self, array: Array) -> Any:
        flags = self._cl.mem_flags.READ_WRITE | self._cl.mem_flags.COPY_HOST_PTR
        host = np.ascontiguousarray(array, np.float32)
        return self._cl.Buffer(self._context, flags, hostbuf=host)

    def _gemm(
        self, a: Any, b: Any, c: Any, sizes: tuple[int, int, int], alpha: float, beta: float
    ) -> None:
        """Queue one C = alpha A B + beta C; nothing waits for it."""
        m, n, k = sizes
        queue = ctypes.c_void_p(self._queue.int_ptr)
        status = self._library.CLBlastSgemm(
            *(ROW_MAJOR, NOT_TRANSPOSED, NOT_TRANSPOSED, m, n, k, alpha),
            *(a.int_ptr, 0, k, b.int_ptr, 0, n, beta, c.int_ptr, 0, n),
            *(ctypes.byref(queue), None),
        )
        if status != 0:
            raise GlnnError(f"CLBlastSgemm of {m} x {k} x {n} on {self.device}: status {status}")


def why_not() -> str | None:
    """Why CLBlast cannot run here; None where it can."""
    try:
        with Clblast():
            return None
    except GlnnError as error:
        return str(error)


def _warm(many: Callable[[int], float]) -> int:
    """Keep the device busy for a while; how many runs one measure needs."""
    begun, count = perf_counter(), 1
    while True:
        seconds = many(count)
        if seconds < MEASURE_SECONDS:
            count *= 2
        elif perf_counter() - begun >= WARM_SECONDS:
            return count


def _pyopencl() -> Any:
    try:
        import pyopencl  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise GlnnError(f"CLBlast needs pyopencl: {error}") from None
    return pyopencl


def _device(cl: Any) -> Any:
    """A GPU where any platform has one, else the first device."""
    try:
        devices = [device for platform in cl.get_platforms() for device in _devices(cl, platform)]
    except cl.Error as error:  # the loader found no platform
        raise GlnnError(f"no OpenCL platform: {error}") from None
    if not devices:
        raise GlnnError("no OpenCL device")
    return next((d for d in devices if d.type & cl.device_type.GPU), devices[0])


def _devices(cl: Any, platform: Any) -> Iterable[Any]:
    try:
        return list(platform.get_devices())
    except cl.Error:  # a platform without any device
        return []


def _library() -> Any:
    reason = ""
    for name in (find_library("clblast"), "libclblast.so.1"):
        if name is None:
            continue
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            reason = str(error)
            continue
        size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_float
        library.CLBlastSgemm.restype = ctypes.c_int
        library.CLBlastSgemm.argtypes = [
            *[ctypes.c_int] * 3,  # layout, transpositions of A and B
            *[size] * 3,  # m, n, k
            *(number, pointer, size, size),  # alpha; A, its offset, its row's length
            *(pointer, size, size),  # B
            *(number, pointer, size, size),  # beta; C
            *(pointer, pointer),  # cl_command_queue *, cl_event *
        ]
        return library
    raise GlnnError(f"CLBlast needs libclblast: {reason}")
