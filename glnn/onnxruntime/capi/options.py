"""Execution providers, options of sessions and runs, and settings of the whole process."""

from __future__ import annotations

import operator
import platform
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from glnn.errors import shown
from glnn.onnxruntime.capi.declarations import (
    ExecutionMode,
    ExecutionOrder,
    Fail,
    GraphOptimizationLevel,
    NotImplemented,
)
from glnn.onnxruntime.capi.ort_value import OrtArenaCfg, OrtMemoryInfo, OrtValue
from glnn.session import InferenceSession
from glnn.version import VERSION as GLNN_VERSION

GLNN, CPU = "GlnnExecutionProvider", "CPUExecutionProvider"
PROVIDERS = (GLNN, CPU)
_OBJECT_ARGUMENTS = (
    "model",
    "device",
    "kernels",
    "without",
)
"""Arguments that are objects of glnn, which are no options of a provider."""
OPTIONS = tuple(
    name for name in signature(InferenceSession).parameters if name not in _OBJECT_ARGUMENTS
)
"""The options of glnn's provider: arguments of `glnn.InferenceSession`."""
REPORTED_OPTIONS = ("renderer", "vendor", "version", "hosted")
"""Options that sessions report, and programs may pass to the next session: these are ignored."""


@dataclass(frozen=True)
class ProviderChoice:
    """The available ones of the providers that a program asks for, in its order."""

    names: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of glnn's provider: arguments of `glnn.InferenceSession`."""


def choose_providers(providers: object, provider_options: object) -> ProviderChoice:
    """Return the choice that a session's `providers` and `provider_options` ask for.

    Unknown, duplicate and malformed providers are left out with a UserWarning, as by ONNX Runtime.
    Raises ValueError for an option that glnn's provider does not have.
    """
    try:
        pairs = _pairs(providers, provider_options)
    except ValueError as error:
        warnings.warn(f"{error} {list(PROVIDERS)} are taken instead.", UserWarning, stacklevel=4)
        return ProviderChoice()
    result: dict[str, Mapping[str, Any]] = {}
    for name, options in pairs:
        if name not in PROVIDERS:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{', '.join(PROVIDERS)}'",
                UserWarning,
                stacklevel=4,
            )
        elif name in result:
            text = f"Duplicate provider '{name}' encountered, ignoring."
            warnings.warn(text, UserWarning, stacklevel=4)
        else:
            result[name] = options
    return ProviderChoice(tuple(result), _check_options(result.get(GLNN, {})))


def check_and_normalize_provider_args(
    providers: object, provider_options: object, available_provider_names: Sequence[str]
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the available providers, and the options of each as texts.

    Raises ValueError for malformed arguments.
    """
    result: dict[str, dict[str, str]] = {}
    for name, options in _pairs(providers, provider_options):
        if name in available_provider_names and name not in result:
            result[name] = {str(key): str(value) for key, value in options.items()}
    return list(result), list(result.values())


def _pairs(providers: object, provider_options: object) -> list[tuple[str, Mapping[str, Any]]]:
    """Return names with options. Raises ValueError for malformed arguments."""
    if not providers:
        return []
    if isinstance(providers, str):
        providers = [providers]
    if not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    if not provider_options:
        return [_pair(provider) for provider in providers]
    if not isinstance(provider_options, Sequence):
        raise ValueError("'provider_options' should be a sequence.")
    if len(provider_options) != len(providers):
        raise ValueError(
            "'providers' and 'provider_options' should be the same length if both are given."
        )
    if not all(isinstance(one, str) for one in providers):
        raise ValueError(
            "Only string values for 'providers' are supported if 'provider_options' is given."
        )
    if not all(isinstance(options, Mapping) for options in provider_options):
        raise ValueError("'provider_options' values must be dicts.")
    return list(zip(providers, provider_options, strict=True))


def _pair(provider: object) -> tuple[str, Mapping[str, Any]]:
    """Return name and options of a provider. Raises ValueError for another type."""
    if isinstance(provider, str):
        return provider, {}
    if isinstance(provider, (tuple, list)) and len(provider) == 2:
        name, options = provider
        if isinstance(name, str) and isinstance(options, Mapping):
            return name, options
    raise ValueError("'providers' values must be either strings or (string, dict) tuples.")


def _check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of glnn's provider. Raises ValueError for an unknown one."""
    result = {name: value for name, value in options.items() if name not in REPORTED_OPTIONS}
    for name in result:
        if name not in OPTIONS:
            raise ValueError(f"{GLNN} has no option {shown(name)}: it takes {', '.join(OPTIONS)}")
    if isinstance(result.get("fused"), str):  # options of ONNX Runtime are texts
        result["fused"] = result["fused"].lower() not in ("0", "false", "")
    if isinstance(result.get("max_batch"), str):
        try:
            result["max_batch"] = int(result["max_batch"])
        except ValueError:
            got = shown(result["max_batch"])
            raise ValueError(f"{GLNN}: max_batch must be a whole number, got {got}") from None
    return result


MAX_KEY, MAX_VALUE = 1024, 4096
"""The most characters of a configuration's key and of its value."""


def _flag(value: object) -> bool:
    if value is None or hasattr(type(value), "__bool__"):
        return bool(value)
    raise TypeError("a bool")


def _whole(value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError("an int") from None


def _text(value: object) -> str:
    if isinstance(value, (str, bytes)):
        return value if isinstance(value, str) else value.decode()
    raise TypeError("a str")


def _one_of(kind: type[Any]) -> Callable[[object], Any]:
    def check(value: object) -> Any:
        if isinstance(value, kind):
            return value
        raise TypeError(f"one of {kind.__name__}")

    return check


class OptionAttribute:
    """An attribute of options, with a default and a check of new values.

    Setting it raises TypeError for a value of another type.
    """

    def __init__(self, default: Any, check: Callable[[object], Any]) -> None:
        self.default = default
        self.check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, options: Any, owner: type | None = None) -> Any:
        return self if options is None else options.__dict__.get(self.name, self.default)

    def __set__(self, options: Any, value: object) -> None:
        try:
            options.__dict__[self.name] = self.check(value)
        except TypeError as error:
            what = f"{type(options).__name__}.{self.name}"
            raise TypeError(f"{what} must be {error}, got {shown(value)}") from None


class _Options:
    """Base of options: attributes, and configuration entries, which are texts.

    Other attributes cannot be set, as in ONNX Runtime, but in classes derived by programs.
    """

    log_severity_level = OptionAttribute(-1, _whole)
    log_verbosity_level = OptionAttribute(0, _whole)
    logid = OptionAttribute("", _text)
    _entries: dict[str, str]

    def __init__(self) -> None:
        self.__dict__["_entries"] = {}

    def __setattr__(self, name: str, value: object) -> None:
        known = isinstance(getattr(type(self), name, None), OptionAttribute)
        if not known and type(self) in (SessionOptions, RunOptions):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        object.__setattr__(self, name, value)

    def _enter(self, key: str, value: str) -> None:
        key, value = (
            str(_check_type("a configuration", key, str)),
            str(_check_type("a configuration", value, str)),
        )
        if not 0 < len(key) <= MAX_KEY:
            raise RuntimeError(f"Config key is empty or longer than maximum length {MAX_KEY}")
        if len(value) > MAX_VALUE:
            raise RuntimeError(f"Config value is longer than maximum length {MAX_VALUE}")
        self._entries[key] = value

    def _entry(self, key: str) -> str:
        try:
            return str(self._entries[key])
        except KeyError:
            name = type(self).__name__
            raise RuntimeError(f"{name} does not have configuration with key: {key}") from None


class SessionOptions(_Options):
    """Options of a session. Those of threads, memory and logging are stored and have no effect."""

    enable_cpu_mem_arena = OptionAttribute(True, _flag)
    enable_mem_pattern = OptionAttribute(True, _flag)
    enable_mem_reuse = OptionAttribute(True, _flag)
    enable_profiling = OptionAttribute(False, _flag)
    execution_mode = OptionAttribute(ExecutionMode.ORT_SEQUENTIAL, _one_of(ExecutionMode))
    execution_order = OptionAttribute(ExecutionOrder.DEFAULT, _one_of(ExecutionOrder))
    graph_optimization_level = OptionAttribute(
        GraphOptimizationLevel.ORT_ENABLE_ALL, _one_of(GraphOptimizationLevel)
    )
    inter_op_num_threads = OptionAttribute(0, _whole)
    intra_op_num_threads = OptionAttribute(0, _whole)
    optimized_model_filepath = OptionAttribute("", _text)
    profile_file_prefix = OptionAttribute("onnxruntime_profile_", _text)
    use_deterministic_compute = OptionAttribute(False, _flag)
    use_per_session_threads = OptionAttribute(True, _flag)
    _named: dict[str, int]
    _denoted: dict[str, int]
    _initializers: dict[str, OrtValue]
    _added: list[tuple[str, dict[str, str]]]

    def __init__(self) -> None:
        super().__init__()
        self.__dict__.update(_named={}, _denoted={}, _initializers={}, _added=[])

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store `value`. Raises RuntimeError for a key that is empty or too long."""
        self._enter(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return the text that was added for `key`. Raises RuntimeError without one."""
        return self._entry(key)

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix the size of the inputs' dimensions called `name`; runs refuse any other."""
        self._named[_check_type("a dimension", name, str)] = _whole(value)

    def add_free_dimension_override_by_denotation(self, name: str, value: int) -> None:
        """Fix the size of the inputs' dimensions with the denotation `name`, as DATA_BATCH."""
        self._denoted[_check_type("a dimension", name, str)] = _whole(value)

    def add_initializer(self, name: str, value: OrtValue) -> None:
        """Replace the numbers of the initialiser called `name`."""
        if not isinstance(value, OrtValue):
            raise RuntimeError("The provided Python object must be an OrtValue")
        self._initializers[_check_type("an initializer", name, str)] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Replace the numbers of several initialisers. Raises RuntimeError for unequal lengths."""
        if len(names) != len(values):
            raise RuntimeError(
                f"there are {len(names)} names of initializers, {len(values)} values"
            )
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_external_initializers_from_files_in_memory(self, *arguments: object) -> None:
        """Raise NotImplemented."""
        raise NotImplemented.from_text("glnn reads external data from the files that a model names")

    def register_custom_ops_library(self, path: str) -> None:
        """Raise Fail: custom operators are compiled for ONNX Runtime."""
        raise Fail.from_text(
            f"Failed to load library {path}: glnn runs no operators that are compiled for ONNX "
            "Runtime"
        )

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Ask for the provider called `name`. Raises RuntimeError for an unknown one."""
        if name not in PROVIDERS:
            raise RuntimeError(f"Unknown Provider Type: {name}")
        self._added.append((name, dict(options)))

    def add_provider_for_devices(self, devices: Sequence[Any], options: object) -> None:
        """Raise NotImplemented: there are no such devices."""
        raise NotImplemented.from_text("glnn has no devices of execution providers")

    def has_providers(self) -> bool:
        """Return True where a provider was added."""
        return bool(self._added)

    def set_provider_selection_policy(self, policy: object) -> None:
        """Do nothing: GLNN_BACKEND, GLNN_GPU and the provider's options choose."""

    def set_provider_selection_policy_delegate(self, delegate: object) -> None:
        """Do nothing."""

    def set_load_cancellation_flag(self, flag: bool) -> None:
        """Do nothing: models are loaded to the end."""

    def set_ep_context_data_read_func(self, function: object) -> None:
        """Do nothing."""

    def clear_ep_context_data_read_func(self) -> None:
        """Do nothing."""


class RunOptions(_Options):
    """Options of a run. All are stored; only `terminate` has an effect."""

    only_execute_path_to_fetches = OptionAttribute(False, _flag)
    terminate = OptionAttribute(False, _flag)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Store `value`. Raises RuntimeError for a key that is empty or too long."""
        self._enter(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Return the text that was added for `key`. Raises RuntimeError without one."""
        return self._entry(key)

    def add_active_adapter(self, adapter: object) -> None:
        """Raise NotImplemented."""
        raise NotImplemented.from_text("glnn has no adapters")


def _check_type(what: str, value: object, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be given as {kind.__name__}, got {shown(value)}")
    return value


VERSION = "1.32.0"
"""The version of ONNX Runtime that these names were compared with."""
SEVERITIES = range(5)


def get_available_providers() -> list[str]:
    """Return the names of glnn's provider and of the CPU's, which programs ask for."""
    return list(PROVIDERS)


def get_all_providers() -> list[str]:
    """Return the names of all providers, which are always available."""
    return list(PROVIDERS)


def get_device() -> str:
    """Return "CPU", where arrays are. Programs would take any other answer for CUDA."""
    return "CPU"


def get_version_string() -> str:
    """Return the version of ONNX Runtime's interface."""
    return VERSION


def get_build_info() -> str:
    """Return the versions of glnn and of the interface."""
    return f"ORT Build Info: glnn={GLNN_VERSION}, interface={VERSION}"


def has_collective_ops() -> bool:
    """Return False: operators do not span processes."""
    return False


def get_ep_devices() -> list[Any]:
    """Return an empty list: there are no libraries of providers."""
    return []


def register_execution_provider_library(name: str, path: str) -> None:
    """Raise Fail: such libraries are compiled for ONNX Runtime."""
    raise Fail.from_text(f"glnn takes no libraries of execution providers, as {path} for {name}")


def unregister_execution_provider_library(name: str) -> None:
    """Raise Fail."""
    raise Fail.from_text(f"Execution provider library: {name} was not registered.")


def set_default_logger_severity(severity: int) -> None:
    """Do nothing: glnn logs by `logging`. Raises RuntimeError unless `severity` is 0 to 4."""
    if _check_int("severity", severity) not in SEVERITIES:
        levels = "0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal"
        raise RuntimeError(f"Invalid logging severity. {levels}")


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing. Raises TypeError unless `verbosity` is an int."""
    _check_int("verbosity", verbosity)


def set_default_logger_callback(callback: Any, severity: int = 2) -> None:
    """Do nothing: nothing is logged in this way."""
    set_default_logger_severity(severity)


def set_seed(seed: int) -> None:
    """Do nothing: random operators have the seed that the file says. Raises TypeError."""
    _check_int("seed", seed)


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Do nothing: there are no such threads. Raises TypeError unless both are ints."""
    _check_int("intra_op_num_threads", intra_op_num_threads)
    _check_int("inter_op_num_threads", inter_op_num_threads)


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
    """Do nothing: there are no libraries to load."""


def print_debug_info() -> None:
    """Print the versions, and the platform."""
    print(
        f"onnxruntime version: {VERSION}, by glnn {GLNN_VERSION} at {sys.modules['glnn'].__file__}"
    )
    print(f"platform: {platform.platform()}, Python {platform.python_version()}")


def _check_int(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}") from None
