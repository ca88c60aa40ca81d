"""A model and its session of glnn's, under the names that ONNX Runtime's own code has for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from time import time_ns
from typing import Any

from glnn import session
from glnn.errors import GlnnError, ModelError, shown
from glnn.gl.device import SHARED
from glnn.onnxruntime.capi import header
from glnn.onnxruntime.capi.faults import (
    Fail,
    InvalidArgument,
    InvalidProtobuf,
    NoSuchFile,
    fault,
)
from glnn.onnxruntime.capi.feeds import Feeds
from glnn.onnxruntime.capi.node_arg import ModelMetadata, NodeArg, node_arg
from glnn.onnxruntime.capi.options import RunOptions, SessionOptions
from glnn.onnxruntime.capi.ort_value import OrtValue
from glnn.onnxruntime.capi.profile import Profile
from glnn.onnxruntime.capi.providers import CPU, GLNN, ProviderChoice
from glnn.types import UNRANKED

TERMINATED = "Exiting due to terminate flag being set to true."


class Core:
    """A model that is loaded, on a backend.

    model: a path, or the content of an .onnx file. options, choice: what it is told, and which
    providers. Raises NoSuchFile, InvalidProtobuf, InvalidArgument for a model that is none, Fail
    for one that does not load, EPFail where no device opens.
    """

    def __init__(self, model: str | bytes, options: SessionOptions, choice: ProviderChoice) -> None:
        start = time_ns()
        self.session_options = options
        self.profile = Profile.from_options(options, start)
        self._header = _header(model)
        self._session = _open(model, options, choice)
        self._provider_options = choice.options
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        sizes = {**options._named, **self._sizes_by_denotation(options._denoted)}
        self.inputs_meta = [node_arg(info, self._header, sizes) for info in inputs]
        self.outputs_meta = [node_arg(info, self._header, sizes) for info in outputs]
        self.overridable_initializers: list[NodeArg] = []
        unranked = frozenset(info.name for info in inputs if info.shape == (UNRANKED,))
        self.feeds = Feeds(self.inputs_meta, unranked)
        self.model_meta = ModelMetadata.from_header(self._header)
        self._outputs = {info.name: info for info in self.outputs_meta}
        self.profile.add("session_initialization", start)

    def _sizes_by_denotation(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of input dimensions whose denotation is in `sizes`."""
        found: dict[str, int] = {}
        for name, denotations in self._header.denotations.items():
            for dim, denotation in zip(self._header.dims[name], denotations, strict=True):
                if denotation in sizes and isinstance(dim, str):
                    found[dim] = sizes[denotation]
        return found

    def _names(self, output_names: object) -> list[str]:
        """The outputs to compute: all where none is named. Raises TypeError, InvalidArgument."""
        if output_names is None:
            return list(self._outputs)
        if isinstance(output_names, (str, bytes)) or not hasattr(output_names, "__iter__"):
            what = "a list of outputs' names, or None for all of them"
            raise TypeError(f"run(): output_names must be {what}, got {shown(output_names)}")
        names = list(output_names)
        for name in names:
            if name not in self._outputs:
                raise InvalidArgument.saying(f"Invalid output name:{name}")
        return names or list(self._outputs)

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], options: Any = None
    ) -> list[Any]:
        """The outputs called so: arrays, and lists for sequences.

        Raises ValueError for an input that is missing, TypeError for arguments that are none,
        InvalidArgument for what does not fit, and what `fault` makes of glnn's errors.
        """
        self.feeds.required(feeds)
        start = time_ns() if self.profile.on else 0
        try:
            given = self.feeds.arrays(feeds)
            names = self._names(output_names)
            _check(options)
            results = self._session.run(names, given)
            if self.profile.on:
                self.profile.add_run(self._session, given, start)
        except GlnnError as error:
            raise fault(error) from None
        return [_output(result) for result in results]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: object,
        options: Any = None,
    ) -> None:
        """Have `callback` called with what `run` gives, `user_data`, and an empty text.

        Or with an empty list and what is wrong. It is called by a thread of glnn's, which must not
        be kept. Raises ValueError for an input that is missing, TypeError for wrong arguments.
        """
        if not callable(callback):
            raise TypeError(f"run_async(): callback must be callable, got {shown(callback)}")
        self.feeds.required(feeds)
        try:
            given = self.feeds.arrays(feeds)
            names = self._names(output_names)
            _check(options)
            future = self._session.run_async(names, given)
        except (GlnnError, RuntimeError) as error:
            future = Future()
            future.set_exception(error)

        def done(ended: Future[list[Any]]) -> None:
            error = ended.exception()
            if error is None:
                callback([_output(result) for result in ended.result()], user_data, "")
            else:
                text = str(fault(error) if isinstance(error, GlnnError) else error)
                callback([], user_data, text.split(" : ", 3)[-1])

        future.add_done_callback(done)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, OrtValue], options: Any = None
    ) -> list[OrtValue]:
        """Run with OrtValues, and return OrtValues."""
        return [OrtValue(result) for result in self.run(output_names, feeds, options)]

    def get_providers(self) -> list[str]:
        """Glnn's and the CPU's where it runs on a GPU's driver, else the CPU's."""
        return [CPU] if self._session.backend_name == "cpu" else [GLNN, CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the backend, the driver and the nodes that the host computed, of glnn's
        provider.
        """
        name = self._session.backend_name
        if name == "cpu":
            return {CPU: {"backend": name}}
        try:
            wanted = {
                one: self._provider_options.get(one)
                for one in ("gpu", "limits", "priority", "wait")
            }
            about = SHARED.open(**wanted).capabilities
        except GlnnError as error:
            raise fault(error) from None
        told = {
            "backend": name,
            "renderer": about.renderer,
            "vendor": about.vendor,
            "version": about.version_text,
            "hosted": "; ".join(self._session.hosted),
        }
        return {GLNN: told, CPU: {}}

    def end_profiling(self) -> str:
        """The file that was written; empty where there is none."""
        return self.profile.end()

    @property
    def get_profiling_start_time_ns(self) -> int:
        """When it began, in ns since 1970; 0 where it did not."""
        return self.profile.start


def _header(model: str | bytes) -> header.Header:
    """Read the header of `model`. Raises NoSuchFile, InvalidProtobuf, InvalidArgument."""
    if isinstance(model, bytes) and model.lstrip()[:1] == b"{":
        return header.Header()  # a .json model of glnn's
    where = f"Load model from {model} failed:" if isinstance(model, str) else ""
    if isinstance(model, str):
        if not os.path.exists(model):
            raise NoSuchFile.saying(f"{where}Load model {model} failed. File doesn't exist")
        if model.endswith(".json"):
            return header.Header()
    try:
        if _is_ort(model):
            raise Fail.saying(f"{where}glnn reads .onnx files; this one is of ORT format")
        found = header.of_file(model) if isinstance(model, str) else header.of_bytes(model)
    except (ValueError, OSError):
        failed = "Failed to load model because protobuf parsing failed."
        text = f"{where}Protobuf parsing failed." if where else failed
        raise InvalidProtobuf.saying(text) from None
    if not found.graph:
        raise InvalidArgument.saying(f"{where}No graph was found in the protobuf.")
    return found


def _is_ort(model: str | bytes) -> bool:
    """Return True for a file of ORT's own format. Raises OSError."""
    if isinstance(model, bytes):
        return model[4:8] == b"ORTM"
    with open(model, "rb") as file:
        return file.read(8)[4:] == b"ORTM"


def _open(
    model: str | bytes, options: SessionOptions, choice: ProviderChoice
) -> session.InferenceSession:
    """Open a session of glnn's. Raises the errors that `fault` converts glnn's to."""
    where = f"Load model from {model} failed:" if isinstance(model, str) else ""
    if isinstance(model, str) and not model.endswith((".onnx", ".json")):
        with open(model, "rb") as file:  # whatever it is called, and it can name no other files
            model = file.read()
    told = dict(choice.options)
    try:
        found = session.InferenceSession(model, **told)
        if options._initializers:
            arrays = {name: value.numpy() for name, value in options._initializers.items()}
            made = getattr(found.model, "with_parameters", None)
            if made is None:
                raise Fail.saying(f"{where}only an .onnx model takes initializers")
            found = session.InferenceSession(made(arrays), **told)
    except ModelError as error:
        raise Fail.saying(f"{where}{error}") from None
    except GlnnError as error:
        raise fault(error) from None
    return found


def _output(result: Any) -> Any:
    """Return a result as ONNX Runtime has it: a sequence or an optional value unboxed."""
    if result.ndim == 0 and result.dtype.hasobject and not isinstance(result.item(), str):
        return result.item()
    return result


def _check(options: Any) -> None:
    """Raise TypeError for what is no RunOptions, Fail where they say that the run is to end."""
    if options is None:
        return
    if not isinstance(options, RunOptions):
        raise TypeError(f"run(): run_options must be RunOptions, got {shown(options)}")
    if options.terminate:
        raise Fail.saying(TERMINATED)
