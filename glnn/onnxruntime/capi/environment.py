"""ONNX Runtime's module-level functions: versions, devices, logging and settings of the process."""

from __future__ import annotations

import operator
import platform
import sys
from typing import Any

from glnn.onnxruntime.capi.devices import OrtArenaCfg, OrtMemoryInfo
from glnn.onnxruntime.capi.faults import Fail
from glnn.onnxruntime.capi.providers import PROVIDERS
from glnn.version import VERSION as OWN

VERSION = "1.32.0"
"""The version of ONNX Runtime that these names were compared with."""
SEVERITIES = range(5)


def get_available_providers() -> list[str]:
    """Glnn's, and the CPU's, for which programs ask."""
    return list(PROVIDERS)


def get_all_providers() -> list[str]:
    """The same: no other can ever be there."""
    return list(PROVIDERS)


def get_device() -> str:
    """CPU: where programs give and get arrays. Any other answer would make them ask for CUDA."""
    return "CPU"


def get_version_string() -> str:
    """The version of ONNX Runtime whose names these are."""
    return VERSION


def get_build_info() -> str:
    """Return the versions of glnn and of the interface."""
    return f"ORT Build Info: glnn={OWN}, interface={VERSION}"


def has_collective_ops() -> bool:
    """Return False: operators do not span processes."""
    return False


def get_ep_devices() -> list[Any]:
    """Return an empty list: there are no libraries of providers."""
    return []


def register_execution_provider_library(name: str, path: str) -> None:
    """Raise Fail: such libraries are compiled for ONNX Runtime."""
    raise Fail.saying(f"glnn takes no libraries of execution providers, as {path} for {name}")


def unregister_execution_provider_library(name: str) -> None:
    """Raise Fail."""
    raise Fail.saying(f"Execution provider library: {name} was not registered.")


def set_default_logger_severity(severity: int) -> None:
    """Do nothing: glnn logs by `logging`. Raises RuntimeError unless `severity` is 0 to 4."""
    if _whole("severity", severity) not in SEVERITIES:
        levels = "0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal"
        raise RuntimeError(f"Invalid logging severity. {levels}")


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing. Raises TypeError unless `verbosity` is an int."""
    _whole("verbosity", verbosity)


def set_default_logger_callback(callback: Any, severity: int = 2) -> None:
    """Do nothing: nothing is logged in this way."""
    set_default_logger_severity(severity)


def set_seed(seed: int) -> None:
    """Do nothing: random operators have the seed that the file says. Raises TypeError."""
    _whole("seed", seed)


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Do nothing: there are no such threads. Raises TypeError unless both are ints."""
    _whole("intra_op_num_threads", intra_op_num_threads)
    _whole("inter_op_num_threads", inter_op_num_threads)


def enable_telemetry_events() -> None:
    """Do nothing: nothing is ever sent."""


def disable_telemetry_events() -> None:
    """Do nothing: nothing is ever sent."""


def create_and_register_allocator(info: OrtMemoryInfo, config: OrtArenaCfg | None) -> None:
    """Do nothing: memory is glnn's."""


def create_and_register_allocator_v2(
    provider: str, info: OrtMemoryInfo, options: Any, config: OrtArenaCfg | None
) -> None:
    """Do nothing: memory is glnn's."""


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Do nothing: there are none to load."""


def print_debug_info() -> None:
    """Print what this is and where it runs."""
    print(f"onnxruntime version: {VERSION}, by glnn {OWN} at {sys.modules['glnn'].__file__}")
    print(f"platform: {platform.platform()}, Python {platform.python_version()}")


def _whole(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}") from None
