"""ONNX Runtime's `InferenceSession`, which runs a model by glnn, and its bindings."""

from __future__ import annotations

import json
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from time import time_ns
from typing import Any, overload

import numpy as np

from glnn import session
from glnn.core.types import UNRANKED
from glnn.errors import GlnnError, ModelError, shown
from glnn.gl.device import SHARED
from glnn.onnxruntime.capi.declarations import (
    AdapterFormat,
    Fail,
    InvalidArgument,
    ModelCompiler,
    NotImplemented,
    OrtDeviceVendorId,
    SparseTensor,
    convert_error,
)
from glnn.onnxruntime.capi.io_binding import IOBinding
from glnn.onnxruntime.capi.node_arg import (
    ModelMetadata,
    NodeArg,
    node_arg,
    read_header,
)
from glnn.onnxruntime.capi.options import (
    CPU,
    GLNN,
    ProviderChoice,
    RunOptions,
    SessionOptions,
    check_and_normalize_provider_args,
    choose_providers,
)
from glnn.onnxruntime.capi.ort_value import (
    KINDS,
    OrtDevice,
    OrtMemoryInfo,
    OrtValue,
    RunInputs,
    copy_tensors,
    lock_memories,
    unwrap,
)
from glnn.runtime.device_array import DeviceArray, as_host_array

__all__ = [
    "AdapterFormat",
    "IOBinding",
    "InferenceSession",
    "ModelCompiler",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "Session",
    "SparseTensor",
    "check_and_normalize_provider_args",
    "copy_tensors",
    "get_ort_device_type",
]


class Live:
    """An attribute that is computed on each read, until it is assigned."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Live: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Any: ...

    def __get__(self, instance: object | None, owner: type) -> Any:
        return self if instance is None else self._compute(instance)


class Session:
    """The methods of a session, which call its `_sess`."""

    _sess: Core
    _sess_options: SessionOptions

    def __init__(self, enable_fallback: bool = True) -> None:
        self._enable_fallback = bool(enable_fallback)
        self._fallback_providers = [CPU]

    @Live
    def _providers(self) -> list[str]:
        return self._sess.get_providers()

    @Live
    def _provider_options(self) -> dict[str, dict[str, str]]:
        return self._sess.get_provider_options()

    @Live
    def _inputs_meta(self) -> list[NodeArg]:
        return self._sess.inputs_meta

    @Live
    def _outputs_meta(self) -> list[NodeArg]:
        return self._sess.outputs_meta

    @Live
    def _overridable_initializers(self) -> list[NodeArg]:
        return self._sess.overridable_initializers

    @Live
    def _model_meta(self) -> ModelMetadata:
        return self._sess.model_meta

    @Live
    def _profiling_start_time_ns(self) -> int:
        return self._sess.get_profiling_start_time_ns

    def get_session_options(self) -> SessionOptions:
        """Return the options that the session was made with."""
        return self._sess_options

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs, each with `name`, `shape` and `type`."""
        return self._sess.inputs_meta

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, each with `name`, `shape` and `type`."""
        return self._sess.outputs_meta

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return an empty list: a file's constants change only by
        `SessionOptions.add_initializer`.
        """
        return self._sess.overridable_initializers

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of the file."""
        return self._sess.model_meta

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the host's memory for each input."""
        return [OrtMemoryInfo() for _ in self._sess.inputs_meta]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return the host's memory for each output."""
        return [OrtMemoryInfo() for _ in self._sess.outputs_meta]

    def get_input_epdevices(self) -> list[Any]:
        """Return None for each input: there are no such devices."""
        return [None for _ in self._sess.inputs_meta]

    def get_providers(self) -> list[str]:
        """Return the providers in use: GlnnExecutionProvider where a GPU's driver computes."""
        return self._sess.get_providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return glnn's options as texts: the backend, the driver, and the nodes that the host
        computed.
        """
        return self._sess.get_provider_options()

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """Raise Fail."""
        raise Fail.from_text(
            "glnn keeps no assignment of nodes to providers; `glnn plan` shows steps"
        )

    def disable_fallback(self) -> None:
        """Store the flag, which has no effect."""
        self._enable_fallback = False

    def enable_fallback(self) -> None:
        """Store the flag, which has no effect."""
        self._enable_fallback = True

    def _validate_input(self, feed_input_names: Sequence[str]) -> None:
        self._sess.feeds.required(dict.fromkeys(feed_input_names))

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run the model, and return the outputs `output_names` in that order; all for None or [].

        input_feed: by input name an array, a list, or an OrtValue. Raises ValueError where an input
        is missing, InvalidArgument for a wrong type or shape or an unknown name, RuntimeError for
        what is no tensor, NotImplemented, EPFail and Fail for a run that fails.
        """
        return self._sess.run(output_names, input_feed, run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: object,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run the model, and call `callback(outputs, user_data, error)` from another thread.

        `error` is empty, or the fault of a run without outputs. No array of `input_feed` may change
        before the call. Raises ValueError where an input is missing, TypeError for arguments of
        other types.
        """
        self._sess.run_async(output_names, input_feed, callback, user_data, run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run with OrtValues, and return OrtValues."""
        feeds = dict(input_dict_ort_values)
        self._sess.feeds.required(feeds)
        feeds = {name: value._get_c_value() for name, value in feeds.items()}
        return self._sess.run_with_ort_values(output_names, feeds, run_options)

    def io_binding(self) -> IOBinding:
        """Return an IOBinding for the session."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run with bound inputs and outputs.

        Raises ValueError for another session's binding, RuntimeError for a run that fails.
        """
        if iobinding._session is not self._sess:
            raise ValueError("IOBinding must be used with the session that created it.")
        iobinding._run(run_options)

    def run_with_ortvaluevector(self, *arguments: object) -> None:
        """Raise NotImplemented."""
        raise NotImplemented.from_text("glnn runs no vectors of values: run_with_ort_values does")

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = "cpu", *more: Any
    ) -> OrtValue:
        """Return a tensor of zeros in the host's memory, or on glnn's device."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type)

    def end_profiling(self) -> str:
        """Write the profile, and return the file's name; empty without `enable_profiling`."""
        return self._sess.end_profiling()

    def get_profiling_start_time_ns(self) -> int:
        """Return the start of profiling in ns since 1970; 0 without profiling."""
        return self._sess.get_profiling_start_time_ns

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Raise NotImplemented."""
        raise NotImplemented.from_text("glnn's provider has no options that change in a session")

    def get_tuning_results(self) -> list[Any]:
        """Return an empty list: `glnn tune` keeps its results by itself."""
        return []

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        """Do nothing: `glnn tune` keeps its results by itself."""

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: there is no captured graph."""


class InferenceSession(Session):
    """A model that is run by glnn, on a GPU wherever there is one.

    path_or_bytes: the path of an .onnx file, its content, or a ModelProto. providers: names, or
    names with options; glnn runs the model for all of them. provider_options: the options of each
    name. See docs/onnxruntime.md for what is honoured. Raises TypeError for what is no model,
    NoSuchFile, InvalidProtobuf, InvalidArgument, Fail and NotImplemented for one that does not
    load, EPFail where no device opens, ValueError for an option that glnn's provider has not.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str] | Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(int(kwargs.get("enable_fallback", True)) == 1)
        self._model_path: str | None = None
        self._model_bytes: bytes | None = None
        if isinstance(path_or_bytes, (str, os.PathLike)):
            self._model_path = os.fsdecode(path_or_bytes)
        elif isinstance(path_or_bytes, bytes):
            self._model_bytes = path_or_bytes
        elif hasattr(path_or_bytes, "SerializeToString"):
            self._model_bytes = path_or_bytes.SerializeToString()
        else:
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise TypeError(f"sess_options must be SessionOptions, got {shown(sess_options)}")
        self._sess_options_initial = sess_options
        self._sess_options = SessionOptions() if sess_options is None else sess_options
        self._read_config_from_model = os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL") == "1"
        if self._sess_options.optimized_model_filepath:
            warnings.warn(
                "optimized_model_filepath: glnn writes no optimized model",
                UserWarning,
                stacklevel=2,
            )
        self._create_inference_session(providers, provider_options)

    def _create_inference_session(
        self, providers: Any, provider_options: Any, disabled_optimizers: Any = None
    ) -> None:
        self._provider_arguments = providers, provider_options
        choice = choose_providers(providers or self._sess_options._added, provider_options)
        model = self._model_path if self._model_bytes is None else self._model_bytes
        assert model is not None
        self._sess = Core(model, self._sess_options, choice)
        if self._sess.profile.on:
            weakref.finalize(self, self._sess.profile.end)

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Load the model again with these providers. Raises what the constructor raises."""
        self._create_inference_session(providers, provider_options)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_sess"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restore all but the model, which is loaded on first use.

        If loading fails in a pool's process, the error is then reported; raised from unpickling, it
        would leave the pool without an answer.
        """
        self.__dict__.update(state)

    def __getattr__(self, name: str) -> Any:
        if name != "_sess" or "_provider_arguments" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._create_inference_session(*self._provider_arguments)
        return self._sess


NOTHING: Mapping[str, Any] = {}
TERMINATED = "Exiting due to terminate flag being set to true."


class Core:
    """A session of glnn's under the names that ONNX Runtime's compiled code has for it.

    model: a path, or the content of an .onnx file. Raises NoSuchFile, InvalidProtobuf,
    InvalidArgument for what is no model, Fail for one that does not load, EPFail where no device
    opens.
    """

    def __init__(self, model: str | bytes, options: SessionOptions, choice: ProviderChoice) -> None:
        start = time_ns()
        self.session_options = options
        self.profile = SessionProfile.from_options(options, start)
        self._header = read_header(model)
        self._session = _open(model, options, choice)
        self._provider_options = choice.options
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        sizes = {**options._named, **self._sizes_by_denotation(options._denoted)}
        self.inputs_meta = [node_arg(info, self._header, sizes) for info in inputs]
        self.outputs_meta = [node_arg(info, self._header, sizes) for info in outputs]
        self.overridable_initializers: list[NodeArg] = []
        unranked = frozenset(info.name for info in inputs if info.shape == (UNRANKED,))
        self.feeds = RunInputs(self.inputs_meta, unranked)
        self.model_meta = ModelMetadata.from_header(self._header)
        self._outputs = {info.name: info for info in self.outputs_meta}
        self._tensors = frozenset(
            info.name
            for info in self.outputs_meta
            if info.type.startswith("tensor(") and info.type != "tensor(string)"
        )
        """The names of the outputs that are tensors of numbers."""
        self.profile.add("session_initialization", start)

    def _sizes_by_denotation(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of input dimensions whose denotation is in `sizes`."""
        result: dict[str, int] = {}
        for name, denotations in self._header.denotations.items():
            for dim, denotation in zip(self._header.dims[name], denotations, strict=True):
                if denotation in sizes and isinstance(dim, str):
                    result[dim] = sizes[denotation]
        return result

    def _names(self, output_names: object) -> list[str]:
        """Return the outputs to compute, by default all. Raises TypeError, InvalidArgument."""
        if output_names is None:
            return list(self._outputs)
        if isinstance(output_names, (str, bytes)) or not hasattr(output_names, "__iter__"):
            what = "a list of outputs' names, or None for all of them"
            raise TypeError(f"run(): output_names must be {what}, got {shown(output_names)}")
        names = list(output_names)
        for name in names:
            if name not in self._outputs:
                raise InvalidArgument.from_text(f"Invalid output name:{name}")
        return names or list(self._outputs)

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        options: Any = None,
        on_device: Mapping[str, DeviceArray | type[DeviceArray]] = NOTHING,
    ) -> list[Any]:
        """Run, and return the outputs `output_names`: arrays, and lists for sequences.

        on_device: outputs to return as DeviceArrays, if they are tensors of numbers: by name the
        class, or a DeviceArray that is donated, so that the run may overwrite it. Raises ValueError
        for a missing input, TypeError for arguments of other types, InvalidArgument for inputs that
        do not fit, and glnn's errors as `convert_error` converts them.
        """
        with lock_memories(map(unwrap, feeds.values())):
            return self.run_locked(output_names, feeds, options, on_device)

    def run_locked(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        options: Any,
        on_device: Mapping[str, DeviceArray | type[DeviceArray]],
    ) -> list[Any]:
        """Run as `run`, for a caller that has locked the memories among `feeds`."""
        self.feeds.required(feeds)
        start = time_ns() if self.profile.on else 0
        try:
            arrays = self.feeds.arrays(feeds)
            names = self._names(output_names)
            _check(options)
            # Profiling repeats the run with the same inputs: nothing is donated then.
            profiling, tensors = self.profile.on, self._tensors
            out = {
                name: DeviceArray if profiling else target
                for name, target in on_device.items()
                if name in tensors
            }
            results = self._session.run(names, arrays, out=out or None)
            if self.profile.on:
                self.profile.add_run(self._session, arrays, start)
        except GlnnError as error:
            raise convert_error(error) from None
        return [_output(result) for result in results]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: object,
        options: Any = None,
    ) -> None:
        """Call `callback` with the results of `run`, `user_data`, and an empty text.

        After a run that fails: with an empty list, and the error's text. The caller is a thread of
        glnn, which the callback must not block. Values on the device are read before this returns;
        arrays are not copied, and must not change until the callback is called. Raises ValueError
        for a missing input, TypeError for arguments of other types.
        """
        if not callable(callback):
            raise TypeError(f"run_async(): callback must be callable, got {shown(callback)}")
        self.feeds.required(feeds)
        try:
            with lock_memories(map(unwrap, feeds.values())):
                arrays = self.feeds.arrays(feeds)
                names = self._names(output_names)
                _check(options)
                future = self._session.run_async(names, arrays)
        except (GlnnError, RuntimeError) as error:
            future = Future()
            future.set_exception(error)

        def done(finished: Future[list[Any]]) -> None:
            error = finished.exception()
            if error is None:
                callback([_output(result) for result in finished.result()], user_data, "")
            else:
                text = str(convert_error(error) if isinstance(error, GlnnError) else error)
                callback([], user_data, text.split(" : ", 3)[-1])

        future.add_done_callback(done)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, OrtValue], options: Any = None
    ) -> list[OrtValue]:
        """Run with OrtValues, and return OrtValues."""
        return [OrtValue(result) for result in self.run(output_names, feeds, options)]

    def get_providers(self) -> list[str]:
        """Return glnn's provider and the CPU's, only the latter for the backend cpu."""
        return [CPU] if self._session.backend_name == "cpu" else [GLNN, CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return by provider the backend, the driver and the nodes that the host computed."""
        name = self._session.backend_name
        if name == "cpu":
            return {CPU: {"backend": name}}
        try:
            arguments = {
                one: self._provider_options.get(one)
                for one in ("gpu", "limits", "priority", "wait")
            }
            capabilities = SHARED.open(**arguments).capabilities
        except GlnnError as error:
            raise convert_error(error) from None
        reported = {
            "backend": name,
            "renderer": capabilities.renderer,
            "vendor": capabilities.vendor,
            "version": capabilities.version_text,
            "hosted": "; ".join(self._session.hosted),
        }
        return {GLNN: reported, CPU: {}}

    def end_profiling(self) -> str:
        """Write the profile, and return the file's name; empty without profiling."""
        return self.profile.end()

    @property
    def get_profiling_start_time_ns(self) -> int:
        """The start of profiling in ns since 1970; 0 without profiling."""
        return self.profile.start


def _open(
    model: str | bytes, options: SessionOptions, choice: ProviderChoice
) -> session.InferenceSession:
    """Open a session of glnn. Raises ONNX Runtime's errors."""
    where = f"Load model from {model} failed:" if isinstance(model, str) else ""
    if isinstance(model, str) and not model.endswith((".onnx", ".json")):
        with open(model, "rb") as file:  # of any name; external data is not read
            model = file.read()
    arguments = dict(choice.options)
    try:
        result = session.InferenceSession(model, **arguments)
        if options._initializers:
            arrays = {name: value.numpy() for name, value in options._initializers.items()}
            with_parameters = getattr(result.model, "with_parameters", None)
            if with_parameters is None:
                raise Fail.from_text(f"{where}only an .onnx model takes initializers")
            result = session.InferenceSession(with_parameters(arrays), **arguments)
    except ModelError as error:
        raise Fail.from_text(f"{where}{error}") from None
    except GlnnError as error:
        raise convert_error(error) from None
    return result


def _output(result: Any) -> Any:
    """Unbox a result that is a sequence or an optional value."""
    if not isinstance(result, np.ndarray):
        return result
    if result.ndim == 0 and result.dtype.hasobject and not isinstance(result.item(), str):
        return result.item()
    return result


def _check(options: Any) -> None:
    """Raise TypeError for anything but RunOptions or None, Fail where `terminate` is set."""
    if options is None:
        return
    if not isinstance(options, RunOptions):
        raise TypeError(f"run(): run_options must be RunOptions, got {shown(options)}")
    if options.terminate:
        raise Fail.from_text(TERMINATED)


def get_ort_device_type(device_type: str) -> int:
    """Return the number of a device type. Raises Exception for an unknown name."""
    if device_type not in KINDS:
        raise Exception(f"Unsupported device type: {device_type}")
    return KINDS[device_type]


class SessionProfile:
    """The profile of a session in Chrome's trace event format.

    It has the session's events, and glnn's trace of each plan as a process. prefix: of the file's
    name. start: ns since 1970, 0 for no profile.
    """

    def __init__(self, prefix: str, start: int) -> None:
        self.prefix, self.start = prefix, start
        self.on = bool(start)
        self._events: list[dict[str, Any]] = []
        self._trace: Any = None
        self._lock = threading.Lock()

    @classmethod
    def from_options(cls, options: SessionOptions, start: int) -> SessionProfile:
        """Return the profile that `options` ask for; `start` is in nanoseconds."""
        return cls(options.profile_file_prefix, start if options.enable_profiling else 0)

    def add(self, name: str, start: int, **more: Any) -> None:
        """Add an event from `start`, ns since 1970, until now."""
        if not self.on:
            return
        began, took = (start - self.start) / 1e3, (time_ns() - start) / 1e3
        event = {"cat": "Session", "ph": "X", "name": name, "ts": began, "dur": took, "args": more}
        thread = {"pid": os.getpid(), "tid": threading.get_native_id()}
        with self._lock:
            self._events.append({**event, **thread})

    def add_run(
        self, session: session.InferenceSession, feeds: Mapping[str, Any], start: int
    ) -> None:
        """Add a finished run of `session` that began at `start`; repeat it to time its steps.

        Steps are missing for a model without a single plan, or with inputs that are no tensors.
        """
        shapes = {name: getattr(value, "shape", ()) for name, value in feeds.items()}
        sizes = {name: list(shape) for name, shape in shapes.items()}
        self.add("model_run", start, inputs=sizes, backend=session.backend_name)
        with self._lock, suppress(GlnnError, AttributeError):
            if self._trace is None:  # imported here: large, and rarely used
                self._trace = import_module("glnn.profiling.trace").Trace()
            arrays = {name: as_host_array(value) for name, value in feeds.items()}
            self._trace.run(session.plan(shapes), arrays)

    def end(self) -> str:
        """Write the file, once, and return its name; empty without profiling. Raises OSError."""
        with self._lock:
            if not self.on:
                return ""
            self.on = False
        steps = [] if self._trace is None else self._trace.to_json()["traceEvents"]
        name = f"{self.prefix}_{datetime.now():%Y-%m-%d_%H-%M-%S_%f}"[:-3] + ".json"
        with open(name, "w", encoding="utf-8") as file:
            json.dump([*self._events, *steps], file)
        return name
