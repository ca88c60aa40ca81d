"""A peer of the benchmarks: CLBlast, the OpenCL BLAS, on a device that pyopencl opens.

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
Pair = tuple[int, int]
Windows = tuple[Pair, Pair, Pair, Pair]
"""Height and width of the kernel, the padding, the stride and the dilation."""
ROW_MAJOR, NOT_TRANSPOSED, TRANSPOSED = 101, 111, 112  # CLBlastLayout, CLBlastTranspose
CROSS_CORRELATION = 151  # CLBlastKernelMode
WARM_SECONDS = 0.1  # a GPU that idles lowers its clocks
MEASURE_SECONDS = 0.02


class Clblast:
    """CLBlast on one OpenCL device: a GPU where there is one, else a CPU (PoCL)."""

    def __init__(self) -> None:
        """Raises GlnnError where pyopencl, a device or libclblast is missing."""
        self.cl = _pyopencl()
        self._library = _library()
        self._device = _device(self.cl)
        try:
            self.context = self.cl.Context([self._device])
            self.queue = self.cl.CommandQueue(self.context)
        except self.cl.Error as error:
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
            self.queue.finish()
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
            left, right = self.upload(a), self.upload(b)
            # The timed C is never read: drivers may keep a result that was read on the host.
            checked, timed = self.upload(start), self.upload(start)
            result = np.empty((m, n), np.float32)
            self.gemm(left, right, checked, (m, n, k), alpha, beta)
            self.cl.enqueue_copy(self.queue, result, checked)

            def many(count: int) -> float:
                self.queue.finish()
                begun = perf_counter()
                for _ in range(count):
                    self.gemm(left, right, timed, (m, n, k), alpha, beta)
                self.queue.finish()
                return perf_counter() - begun

            count = _warm(many)
            return median(many(count) for _ in range(repeat)) / count, result
        except self.cl.Error as error:
            raise GlnnError(f"OpenCL on {self.device}: {error}") from None

    def upload(self, array: Array) -> Any:
        """A buffer of the device that holds `array`."""
        flags = self.cl.mem_flags.READ_WRITE | self.cl.mem_flags.COPY_HOST_PTR
        host = np.ascontiguousarray(array, np.float32)
        return self.cl.Buffer(self.context, flags, hostbuf=host)

    def gemm(
        self,
        a: Any,
        b: Any,
        c: Any,
        sizes: tuple[int, int, int],
        alpha: float = 1.0,
        beta: float = 0.0,
        *,
        transposed: bool = False,
        at: int = 0,
    ) -> None:
        """Queue one C = alpha A B + beta C; nothing waits for it.

        transposed: B lies as (n, k). at: the float at which C begins in `c`.
        """
        m, n, k = sizes
        queue = ctypes.c_void_p(self.queue.int_ptr)
        order, row = (TRANSPOSED, k) if transposed else (NOT_TRANSPOSED, n)
        status = self._library.CLBlastSgemm(
            *(ROW_MAJOR, NOT_TRANSPOSED, order, m, n, k, alpha),
            *(a.int_ptr, 0, k, b.int_ptr, 0, row, beta, c.int_ptr, at, n),
            *(ctypes.byref(queue), None),
        )
        if status != 0:
            raise GlnnError(f"CLBlastSgemm of {m} x {k} x {n} on {self.device}: status {status}")

    def im2col(
        self, image: Any, at: int, columns: Any, shape: tuple[int, int, int], windows: Windows
    ) -> None:
        """Queue the unfolding of one (c, h, w) image, which begins at float `at`."""
        queue = ctypes.c_void_p(self.queue.int_ptr)
        pairs = [size for pair in windows for size in pair]
        status = self._library.CLBlastSim2col(
            *(CROSS_CORRELATION, *shape, *pairs, image.int_ptr, at, columns.int_ptr, 0),
            *(ctypes.byref(queue), None),
        )
        if status != 0:
            raise GlnnError(f"CLBlastSim2col of {shape} on {self.device}: status {status}")


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
        library.CLBlastSim2col.restype = ctypes.c_int
        library.CLBlastSim2col.argtypes = [
            ctypes.c_int,  # cross-correlation or convolution
            *[size] * 11,  # c, h, w; kernel, padding, stride, dilation
            *(pointer, size, pointer, size),  # the image, the columns
            *(pointer, pointer),
        ]
        return library
    raise GlnnError(f"CLBlast needs libclblast: {reason}")
