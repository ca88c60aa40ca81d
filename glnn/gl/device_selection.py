"""GPUs, the options of a device, and the candidates for its GL context, tried in order."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from glnn.core.process import GL_PROCESS, lower_priority
from glnn.core.settings import PRIORITIES, WAITS, Settings
from glnn.errors import DeviceError, shown
from glnn.gl.context import (
    ES_VERSIONS,
    WINDOW_VERSIONS,
    Attempt,
    Context,
    NoDeviceError,
    StepError,
    Version,
)
from glnn.gl.device_info import Capabilities
from glnn.gl.egl import (
    DEBIAN_PACKAGES,
    DEFAULT,
    DEVICE,
    SURFACELESS,
    Egl,
    cuda_device_index,
    cuda_numbers,
    parse_cuda_number,
    remember,
)
from glnn.gl.window import WindowContext

OF_LLVM = "LLVMContextCreate"
"""A symbol that is global in a process where a library loaded LLVM with global symbols."""


def load_triton() -> None:
    """Load Triton's library where PyTorch was imported, which may load it later.

    Call it before GL is opened, and, as another library may have opened GL, before PyTorch loads
    Triton. Where LLVM's symbols are global already, Triton's library is bound to its own ones
    first. A loaded library stays loaded, and Python's import of Triton uses it. Triton's Python
    code is not imported, and no error is raised: PyTorch works without Triton, too.
    """
    if "torch" not in sys.modules or not hasattr(os, "RTLD_NOW"):
        return
    with suppress(Exception):
        spec = find_spec("triton")
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in sorted(Path(folder, "_C").glob("libtriton*.so")):
                ctypes.CDLL(str(path), mode=_mode())


def _mode() -> int:
    is_global = hasattr(ctypes.CDLL(None), OF_LLVM)
    return os.RTLD_NOW | (getattr(os, "RTLD_DEEPBIND", 0) if is_global else 0)


WINDOW = "window"
PLATFORMS = (DEVICE, SURFACELESS, DEFAULT, WINDOW)
LOG = logging.getLogger(__name__)
NO_DRIVER = {
    *("eglQueryDevicesEXT", "eglGetPlatformDisplayEXT", "eglGetDisplay", "eglInitialize"),
    "glfwInit",
}
"""Steps that fail where EGL is installed without a driver."""
INDICES = "the indices are"
"""The beginning of the error for a wrong index, where there are GPUs."""
MINIMUM_LIMITS = "es31-minimum"

Candidate = tuple[str, Callable[[Sequence[Version]], Context]]


@dataclass(frozen=True)
class Gpu:
    """A GPU that EGL offers."""

    index: int
    """EGL's number."""
    renderer: str = ""
    """The GPU's name by its driver (GL_RENDERER)."""
    vendor: str = ""
    """The driver's vendor (GL_VENDOR)."""
    error: str | None = None
    """Why it does not open; None where it does."""
    cuda: int | None = None
    """CUDA's number, None if it has none."""


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that EGL offers, by index; none where EGL cannot list them.

    Raises DeviceError in a fork of a process that used GL.
    """
    GL_PROCESS.begin_opening()
    load_triton()
    result: list[Gpu] = []
    try:
        with preserve_current_context():
            egl = Egl()
            candidates = zip(egl.candidates(DEVICE), cuda_numbers(egl), strict=True)
            for index, ((_, open_candidate), number) in enumerate(candidates):
                try:
                    context = open_candidate(ES_VERSIONS)
                except StepError as error:
                    result.append(Gpu(index, error=str(error), cuda=number))
                    continue
                offers = Capabilities.query(context)
                context.release()
                result.append(Gpu(index, offers.renderer, offers.vendor, cuda=number))
    except StepError:
        pass
    GL_PROCESS.end_opening(success=any(gpu.error is None for gpu in result))
    return tuple(result)


@contextmanager
def preserve_current_context() -> Iterator[None]:
    """Restore the thread's current context at the end.

    Raises DeviceError in a fork of a process that used GL.
    """
    GL_PROCESS.check()
    try:
        egl = Egl()
    except StepError:
        egl = None
    restore = remember(egl)
    try:
        yield
    finally:
        if restore is not None:
            restore()


def check_limits(limits: str | None) -> None:
    """Raise DeviceError unless `limits` is one that a device can be given."""
    if limits is not None and not (isinstance(limits, str) and limits == MINIMUM_LIMITS):
        raise DeviceError(f"limits must be {MINIMUM_LIMITS!r} or None, got {shown(limits)}")


def check_gpu(gpu: object) -> None:
    """Raise DeviceError unless `gpu` is an index, a text or None."""
    parse_cuda_number(gpu)
    if isinstance(gpu, bool) or not isinstance(gpu, (int, str, type(None))):
        raise DeviceError(f"gpu must be an index or a part of a name, got {shown(gpu)}")


def check_arguments(
    limits: str | None, version: tuple[int, int] | None, platform: str | None
) -> None:
    """Raise DeviceError unless these are arguments that `open_context` takes."""
    check_limits(limits)
    if platform not in (None, *PLATFORMS):
        raise DeviceError(f"platform must be one of {PLATFORMS} or None, got {platform!r}")
    known = [(v.major, v.minor) for v in WINDOW_VERSIONS]
    if version not in (None, *known):
        raise DeviceError(f"version must be one of {sorted(known)} or None, got {version!r}")


def parse_gpu(gpu: int | str | None) -> int | str | None:
    """Return `gpu`, as an index where it is a text of digits, as from the environment."""
    return int(gpu) if isinstance(gpu, str) and gpu.isdecimal() else gpu


def open_context(
    gpu: int | str | None,
    version: tuple[int, int] | None,
    platform: str | None,
    low_priority: bool = False,
) -> tuple[Context, Capabilities, tuple[Attempt, ...]]:
    """Open the first context that fits; return it, its capabilities, and the failed attempts.

    The context is current. low_priority: True to let other programs go first. Raises NoDeviceError.
    """
    GL_PROCESS.begin_opening()
    load_triton()
    attempts: list[Attempt] = []
    for what, open_candidate in _candidates(gpu, platform, low_priority, attempts):
        default = WINDOW_VERSIONS if open_candidate is WindowContext else ES_VERSIONS
        versions = [v for v in WINDOW_VERSIONS if (v.major, v.minor) == version] or default
        try:
            context = open_candidate(versions)
        except StepError as error:
            attempts.append(Attempt(what, error.step, error.error))
            continue
        offers = Capabilities.query(context)
        is_name = isinstance(gpu, str) and parse_cuda_number(gpu) is None
        if is_name and str(gpu).lower() not in f"{offers.renderer}\n{offers.vendor}".lower():
            attempts.append(Attempt(what, "its name", f"{offers.renderer} by {offers.vendor}"))
            context.release()
            continue
        GL_PROCESS.end_opening(success=True)
        failed = "".join(f"; this had failed: {attempt}" for attempt in attempts)
        LOG.info("opened %s, %s, by %s%s", offers.renderer, offers.version_text, what, failed)
        return context, offers, tuple(attempts)
    GL_PROCESS.end_opening(success=False)
    message = "no usable OpenGL ES context" if gpu is None else f"no usable GPU {gpu!r}"
    missing = isinstance(gpu, int) and any(one.error.startswith(INDICES) for one in attempts)
    raise NoDeviceError(message, tuple(attempts), "" if missing else _advice(attempts))


def _advice(attempts: Sequence[Attempt]) -> str:
    """Return advice on what to install where EGL finds no driver, else an empty text."""
    steps = {attempt.step for attempt in attempts}
    if not steps <= NO_DRIVER:
        return ""
    return (
        "EGL finds no driver that opens: expected the GPU vendor's or Mesa's (on Debian: apt "
        f"install {DEBIAN_PACKAGES}), and files in /dev/dri that this user may open"
    )


def open_low_priority_context(
    gpu: int | str | None, version: tuple[int, int] | None, platform: str | None
) -> tuple[Context, Capabilities, tuple[Attempt, ...]]:
    """Open a context that lets other programs go first; return what `open_context` returns.

    A thread of low priority opens it, so that the threads that the driver starts there inherit the
    priority.
    """

    def work() -> tuple[Context, Capabilities, tuple[Attempt, ...]]:
        lower_priority()
        result = open_context(gpu, version, platform, low_priority=True)
        result[0].leave_thread()
        return result

    try:
        with ThreadPoolExecutor(1, "glnn opening") as pool:
            opened = pool.submit(work).result()
        opened[0].make_current()
    except NoDeviceError:
        if platform not in (None, WINDOW):
            raise
        # Windows must be created in this thread.
        opened = open_context(gpu, version, platform, low_priority=True)
    return opened


def _candidates(
    gpu: int | str | None, platform: str | None, low_priority: bool, attempts: list[Attempt]
) -> Iterator[Candidate]:
    """Yield the candidates for a context in the order to try them; add failures to `attempts`."""
    platforms = PLATFORMS if platform is None else (platform,)
    number = parse_cuda_number(gpu)
    if isinstance(gpu, int) or number is not None:
        platforms = (DEVICE,)
    try:
        egl = Egl(low_priority) if set(platforms) - {WINDOW} else None
    except StepError as error:
        attempts.append(Attempt("EGL", error.step, error.error))
        egl = None
    for name in platforms:
        if name == WINDOW:
            yield WindowContext.what, WindowContext
        elif egl is not None:
            try:
                candidates = list(egl.candidates(name))
                if number is not None:
                    gpu = cuda_device_index(egl, number)
            except StepError as error:
                attempts.append(Attempt(f"EGL {name}", error.step, error.error))
                continue
            if isinstance(gpu, int):
                count = len(candidates)
                offered = f"{INDICES} 0 to {count - 1}" if candidates else "there are none"
                if not 0 <= gpu < count:
                    attempts.append(Attempt(f"EGL device {gpu}", "eglQueryDevicesEXT", offered))
                candidates = candidates[gpu : gpu + 1] if gpu >= 0 else []
            elif not candidates:
                attempts.append(Attempt(f"EGL {name}", "eglQueryDevicesEXT", "there are none"))
            yield from candidates


LOW = "low"


@dataclass(frozen=True)
class DeviceOptions:
    """The arguments of a Device. Raises DeviceError for those that are of no use."""

    gpu: int | str | None
    """The GPU; None is the first that opens."""
    limits: str | None
    """MINIMUM_LIMITS, or None for its own."""
    version: tuple[int, int] | None
    """The only version of GL to try; None is any."""
    platform: str | None
    """The only platform to try; None is any."""
    priority: str
    """A member of PRIORITIES."""
    wait: str
    """A member of WAITS."""

    def __post_init__(self) -> None:
        check_gpu(self.gpu)
        check_arguments(self.limits, self.version, self.platform)
        for name, value, known in (
            ("priority", self.priority, PRIORITIES),
            ("wait", self.wait, WAITS),
        ):
            if not isinstance(value, str) or value not in known:
                raise DeviceError(f"{name} must be one of {known}, got {shown(value)}")

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        gpu: int | str | None = None,
        limits: str | None = None,
        version: tuple[int, int] | None = None,
        platform: str | None = None,
        priority: str | None = None,
        wait: str | None = None,
    ) -> DeviceOptions:
        """Return these options; those that are None are the settings'."""
        return cls(
            settings.gpu if gpu is None else gpu,
            settings.limits if limits is None else limits,
            version,
            platform,
            settings.priority if priority is None else priority,
            settings.wait if wait is None else wait,
        )

    @property
    def low_priority(self) -> bool:
        """Return True where the priority is low, so that other work on the GPU goes first."""
        return self.priority == LOW

    def open(self) -> tuple[Context, Capabilities, tuple[Attempt, ...]]:
        """Open a context with these options. Returns and raises what `open_context` does."""
        opening = open_low_priority_context if self.low_priority else open_context
        return opening(parse_gpu(self.gpu), self.version, self.platform)
