"""ONNX Runtime's `InferenceSession`, which runs a model by glnn."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from glnn.errors import shown
from glnn.onnxruntime.capi.absent import (
    AdapterFormat,
    ModelCompiler,
    SparseTensor,
)
from glnn.onnxruntime.capi.core import Core
from glnn.onnxruntime.capi.devices import OrtDevice, OrtMemoryInfo
from glnn.onnxruntime.capi.enums import OrtDeviceVendorId
from glnn.onnxruntime.capi.faults import Fail, NotImplemented
from glnn.onnxruntime.capi.io_binding import IOBinding
from glnn.onnxruntime.capi.io_binding import device_number as get_ort_device_type
from glnn.onnxruntime.capi.node_arg import ModelMetadata, NodeArg
from glnn.onnxruntime.capi.options import RunOptions, SessionOptions
from glnn.onnxruntime.capi.ort_value import OrtValue, copy_tensors
from glnn.onnxruntime.capi.providers import CPU, check_and_normalize_provider_args, choose_providers

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
    """An attribute that is computed each time it is read, until something is assigned to it."""

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
        """The inputs, each with `name`, `shape` and `type`."""
        return self._sess.inputs_meta

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, each with `name`, `shape` and `type`."""
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
        """The host's memory for each input."""
        return [OrtMemoryInfo() for _ in self._sess.inputs_meta]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """The host's memory for each output."""
        return [OrtMemoryInfo() for _ in self._sess.outputs_meta]

    def get_input_epdevices(self) -> list[Any]:
        """Return None for each input: there are no such devices."""
        return [None for _ in self._sess.inputs_meta]

    def get_providers(self) -> list[str]:
        """Return the providers in use: GlnnExecutionProvider where a GPU's driver computes."""
        return self._sess.get_providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of glnn's provider as texts: its backend, the driver, and what the
        host computed.
        """
        return self._sess.get_provider_options()

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """Raise Fail."""
        raise Fail.saying("glnn keeps no assignment of nodes to providers; `glnn plan` shows steps")

    def disable_fallback(self) -> None:
        """Kept, and of no effect: there is nothing to fall back on."""
        self._enable_fallback = False

    def enable_fallback(self) -> None:
        """Kept, and of no effect."""
        self._enable_fallback = True

    def _validate_input(self, feed_input_names: Sequence[str]) -> None:
        self._sess.feeds.required(dict.fromkeys(feed_input_names))

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """The outputs called `output_names` (None or none: all), in that order.

        input_feed: each input's name, and its array of its type, a list, or an OrtValue. Raises
        ValueError where an input is missing, InvalidArgument for one that does not fit or an
        unknown name, RuntimeError for what is no tensor, NotImplemented, EPFail and Fail for what a
        run cannot do.
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
        """Call `callback(outputs, user_data, error)` once the outputs are there.

        error: empty, or what is wrong, and then there are no outputs. The callback is another
        thread's; no array of `input_feed` may change before. Raises ValueError where an input is
        missing, TypeError for arguments of other types.
        """
        self._sess.run_async(output_names, input_feed, callback, user_data, run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run with OrtValues, and return OrtValues."""
        given = dict(input_dict_ort_values)
        self._sess.feeds.required(given)
        given = {name: value._get_c_value() for name, value in given.items()}
        return self._sess.run_with_ort_values(output_names, given, run_options)

    def io_binding(self) -> IOBinding:
        """Return an IOBinding for the session."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run with what is bound. Raises ValueError for another session's, RuntimeError for all
        that is wrong with a run.
        """
        if iobinding._session is not self._sess:
            raise ValueError("IOBinding must be used with the session that created it.")
        iobinding._run(run_options)

    def run_with_ortvaluevector(self, *given: object) -> None:
        """Raise NotImplemented."""
        raise NotImplemented.saying("glnn runs no vectors of values: run_with_ort_values does")

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = "cpu", *more: Any
    ) -> OrtValue:
        """A tensor of zeros in the host's memory."""
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type)

    def end_profiling(self) -> str:
        """The file that `enable_profiling` asked for; empty where it did not."""
        return self._sess.end_profiling()

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, in ns since 1970; 0 where it did not."""
        return self._sess.get_profiling_start_time_ns

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Raise NotImplemented."""
        raise NotImplemented.saying("glnn's provider has no options that change in a session")

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
    names with options; whichever are asked for, glnn runs the model. provider_options: options for
    names. See docs/onnxruntime.md for what is honoured. Raises TypeError for what is no model,
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
        self._asked = providers, provider_options
        wanted = choose_providers(providers or self._sess_options._added, provider_options)
        model = self._model_path if self._model_bytes is None else self._model_bytes
        assert model is not None
        self._sess = Core(model, self._sess_options, wanted)
        if self._sess.profile.on:
            weakref.finalize(self, self._sess.profile.end)

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Load the model anew with these providers. Raises what the constructor raises."""
        self._create_inference_session(providers, provider_options)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_sess"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """The model is loaded when it is first asked for.

        A pool's process that fails to load it then says so, where it would else never answer.
        """
        self.__dict__.update(state)

    def __getattr__(self, name: str) -> Any:
        if name != "_sess" or "_asked" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._create_inference_session(*self._asked)
        return self._sess
