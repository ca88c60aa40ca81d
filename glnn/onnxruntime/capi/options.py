"""Options of sessions and runs: every attribute of ONNX Runtime's, checked as there."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glnn.errors import shown
from glnn.onnxruntime.capi.enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from glnn.onnxruntime.capi.faults import Fail, NotImplemented
from glnn.onnxruntime.capi.ort_value import OrtValue
from glnn.onnxruntime.capi.providers import PROVIDERS

KEY, VALUE = 1024, 4096
"""Characters that a configuration's key and value have at the most."""


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


class Attribute:
    """An attribute of options: its default, and what it is checked by when it is set.

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
    """Attributes and a configuration of texts; nothing else can be set, as in ONNX Runtime.

    Classes derived from those here have what attributes they like.
    """

    log_severity_level = Attribute(-1, _whole)
    log_verbosity_level = Attribute(0, _whole)
    logid = Attribute("", _text)
    _entries: dict[str, str]

    def __init__(self) -> None:
        self.__dict__["_entries"] = {}

    def __setattr__(self, name: str, value: object) -> None:
        known = isinstance(getattr(type(self), name, None), Attribute)
        if not known and type(self) in (SessionOptions, RunOptions):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        object.__setattr__(self, name, value)

    def _enter(self, key: str, value: str) -> None:
        key, value = (
            str(_check_type("a configuration", key, str)),
            str(_check_type("a configuration", value, str)),
        )
        if not 0 < len(key) <= KEY:
            raise RuntimeError(f"Config key is empty or longer than maximum length {KEY}")
        if len(value) > VALUE:
            raise RuntimeError(f"Config value is longer than maximum length {VALUE}")
        self._entries[key] = value

    def _entry(self, key: str) -> str:
        try:
            return str(self._entries[key])
        except KeyError:
            name = type(self).__name__
            raise RuntimeError(f"{name} does not have configuration with key: {key}") from None


class SessionOptions(_Options):
    """Options of a session.

    Those of ONNX Runtime's own threads, memory and logging are kept and have no effect; the rest is
    said where it is.
    """

    enable_cpu_mem_arena = Attribute(True, _flag)
    enable_mem_pattern = Attribute(True, _flag)
    enable_mem_reuse = Attribute(True, _flag)
    enable_profiling = Attribute(False, _flag)
    execution_mode = Attribute(ExecutionMode.ORT_SEQUENTIAL, _one_of(ExecutionMode))
    execution_order = Attribute(ExecutionOrder.DEFAULT, _one_of(ExecutionOrder))
    graph_optimization_level = Attribute(
        GraphOptimizationLevel.ORT_ENABLE_ALL, _one_of(GraphOptimizationLevel)
    )
    inter_op_num_threads = Attribute(0, _whole)
    intra_op_num_threads = Attribute(0, _whole)
    optimized_model_filepath = Attribute("", _text)
    profile_file_prefix = Attribute("onnxruntime_profile_", _text)
    use_deterministic_compute = Attribute(False, _flag)
    use_per_session_threads = Attribute(True, _flag)
    _named: dict[str, int]
    _denoted: dict[str, int]
    _initializers: dict[str, OrtValue]
    _added: list[tuple[str, dict[str, str]]]

    def __init__(self) -> None:
        super().__init__()
        self.__dict__.update(_named={}, _denoted={}, _initializers={}, _added=[])

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep `value`. Raises RuntimeError for a key that is empty or too long."""
        self._enter(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return the text that was added for `key`. Raises RuntimeError without one."""
        return self._entry(key)

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Inputs' dimensions called `name` have this size: others are refused by a run."""
        self._named[_check_type("a dimension", name, str)] = _whole(value)

    def add_free_dimension_override_by_denotation(self, name: str, value: int) -> None:
        """The same of dimensions that the model denotes so, as DATA_BATCH."""
        self._denoted[_check_type("a dimension", name, str)] = _whole(value)

    def add_initializer(self, name: str, value: OrtValue) -> None:
        """The constant called `name` has these numbers, whatever the file says."""
        if not isinstance(value, OrtValue):
            raise RuntimeError("The provided Python object must be an OrtValue")
        self._initializers[_check_type("an initializer", name, str)] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """The same of several. Raises RuntimeError where there are not as many values as names."""
        if len(names) != len(values):
            raise RuntimeError(
                f"there are {len(names)} names of initializers, {len(values)} values"
            )
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_external_initializers_from_files_in_memory(self, *given: object) -> None:
        """Raise NotImplemented."""
        raise NotImplemented.saying("glnn reads external data from the files that a model names")

    def register_custom_ops_library(self, path: str) -> None:
        """Raise Fail: custom operators are compiled for ONNX Runtime."""
        raise Fail.saying(
            f"Failed to load library {path}: glnn runs no operators that are compiled for ONNX "
            "Runtime"
        )

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Ask for the provider called `name`. Raises RuntimeError for one that there is not."""
        if name not in PROVIDERS:
            raise RuntimeError(f"Unknown Provider Type: {name}")
        self._added.append((name, dict(options)))

    def add_provider_for_devices(self, devices: Sequence[Any], options: object) -> None:
        """Raise NotImplemented: there are no such devices."""
        raise NotImplemented.saying("glnn has no devices of execution providers")

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
    """Options of a run: all are kept, and all but `terminate` have no effect."""

    only_execute_path_to_fetches = Attribute(False, _flag)
    terminate = Attribute(False, _flag)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep `value`. Raises RuntimeError for a key that is empty or too long."""
        self._enter(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Return the text that was added for `key`. Raises RuntimeError without one."""
        return self._entry(key)

    def add_active_adapter(self, adapter: object) -> None:
        """Raise NotImplemented."""
        raise NotImplemented.saying("glnn has no adapters")


def _check_type(what: str, value: object, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be given as {kind.__name__}, got {shown(value)}")
    return value
