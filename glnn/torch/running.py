"""Running a captured graph by sessions, with PyTorch as the fallback."""

from __future__ import annotations

import logging
import weakref
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from glnn.core.process import process_lock
from glnn.core.types import Array
from glnn.errors import GlnnError, first_line
from glnn.session import InferenceSession
from glnn.torch.captured_graph import (
    CapturedGraph,
    RefusedError,
    describe_graph,
    number,
    warn_left_to_pytorch,
)
from glnn.torch.exporting import ExportedGraph, export, input_name, output_name
from glnn.validation.comparison import relative_error

Fingerprint = tuple[int, int, bytes]
SAMPLES = 64  # numbers of a weight in its fingerprint


class DeviceWeights:
    """The weights of one module, uploaded in the sessions of its graphs."""

    def __init__(self, weights: Mapping[int, Any], renewed: bool = False) -> None:
        """weights: tensors by input position, referenced weakly.

        renewed: whether the tensors were changed since sessions had them before.
        """
        self._tensors = {i: weakref.ref(tensor) for i, tensor in weights.items()}
        self._fingerprints = {i: fingerprint(tensor) for i, tensor in weights.items()}
        self.sessions: dict[ExportedGraph, InferenceSession] = {}
        self.checked: set[object] = set()  # exports and shapes whose results were compared
        self.renewed = renewed
        self.runs = 0  # since the weights were uploaded

    def is_of(self, weights: Mapping[int, Any]) -> bool:
        """Return True where `weights` are the same tensor objects, changed or not."""
        return all(self._tensors[i]() is tensor for i, tensor in weights.items())

    @property
    def alive(self) -> bool:
        """True while the program still has the tensors."""
        return all(tensor() is not None for tensor in self._tensors.values())

    def changed(self, weights: Mapping[int, Any]) -> tuple[int, ...]:
        """Return the positions of the tensors that were changed since they were uploaded."""
        return tuple(i for i, t in weights.items() if fingerprint(t) != self._fingerprints[i])


def fingerprint(tensor: Any) -> Fingerprint:
    """Return the address, the version and some numbers of `tensor`.

    The version does not count changes by way of `.data` or NumPy; the numbers show most of these.
    """
    version = 0 if tensor.is_inference() else tensor._version
    sample = b""
    if tensor.is_contiguous():
        flat = tensor.detach().resolve_neg().numpy().reshape(-1)
        sample = np.ascontiguousarray(flat[:: max(1, flat.size // SAMPLES)]).tobytes()
    return tensor.data_ptr(), version, sample


LOG = logging.getLogger(__name__)
EXPORTS = 8  # the most ONNX models of one graph, for different sizes
MODULES = 16  # the most modules that share a graph whose sessions are kept
FAILURES = 3  # consecutive failed runs after which PyTorch computes the graph
RESTLESS = 3  # consecutive runs with a changed weight after which it becomes an input
TOLERANCE = {"float32": 1e-3, "float16": 1e-2, "int8": 5e-2}


class UncachedSession(InferenceSession):
    """A session whose weights change often, so that nothing of it is cached on disk."""

    cache = None


class CompiledGraph:
    """A graph that glnn computes, or PyTorch where that is not possible.

    captured: the graph. options: options of InferenceSession. check: whether the first result for
    each set of sizes is compared with PyTorch's. Thread-safe.
    """

    def __init__(self, captured: CapturedGraph, options: Mapping[str, Any], check: bool) -> None:
        self._captured, self._options, self._check = captured, dict(options), check
        self._graph = captured.graph
        self._lock = process_lock()
        self._exports: list[ExportedGraph] = []
        self._device_weights: OrderedDict[tuple[int, ...], DeviceWeights] = OrderedDict()
        self._restless: Counter[int] = Counter()
        self._failures = 0
        self._refusal = ""
        """The reason why PyTorch computes the graph; empty where glnn does."""

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Return the graph's outputs for `inputs`: new tensors, or views of inputs."""
        if self._refusal:
            return self._graph(*inputs)  # type: ignore[no-any-return]
        try:
            outputs = self._run(inputs)
            self._failures = 0
            return outputs
        except RefusedError as error:
            self._refusal = str(error)
        except GlnnError as error:  # too little memory, a lost device, a number beyond int32
            if type(error) is GlnnError:  # a wrong option
                raise
            self._failures += 1
            reason = f"{type(error).__name__}: {first_line(error)}"
            if self._failures < FAILURES:
                warn_left_to_pytorch(self._graph, f"this time, {reason}")
                return self._graph(*inputs)  # type: ignore[no-any-return]
            self._refusal = reason
        warn_left_to_pytorch(self._graph, self._refusal)
        self._device_weights.clear()
        return self._graph(*inputs)  # type: ignore[no-any-return]

    @property
    def sessions(self) -> tuple[InferenceSession, ...]:
        """The sessions, one for each module that shares the graph and each of its exports."""
        with self._lock:
            return tuple(
                one
                for device_weights in self._device_weights.values()
                for one in device_weights.sessions.values()
            )

    def _run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        with self._lock:
            captured, exported, device_weights = self._prepare(inputs)
            session = device_weights.sessions.get(exported)
            is_new = session is None
            if session is None:
                weights = {i: inputs[i] for i in captured.weights}
                kind = UncachedSession if device_weights.renewed else InferenceSession
                session = kind(exported.model(weights), **self._options)
                device_weights.sessions[exported] = session
        names = {info.name for info in session.get_inputs()}
        feeds = {input_name(i): _array(inputs[i]) for i in captured.tensors}
        feeds = {key: array for key, array in feeds.items() if key in names}
        output_names = [output_name(i) for i in captured.computed]
        results = [_tensor(array, feeds.values()) for array in session.run(output_names, feeds)]
        if is_new:  # the first run decides what `auto` is
            LOG.info("%s runs on %s", describe_graph(self._graph), session.backend.name)
        if self._check:
            shapes = tuple(tuple(inputs[i].shape) for i in captured.tensors)
            if (exported, shapes) not in device_weights.checked:
                self._compare(captured, inputs, results)
                device_weights.checked.add((exported, shapes))
        if captured.rest is None:
            return results
        others = list(captured.rest(*inputs))
        computed, rest = dict(zip(captured.computed, results, strict=True)), iter(others)
        count = len(computed) + len(others)
        return [computed[i] if i in computed else next(rest) for i in range(count)]

    def _prepare(self, inputs: Sequence[Any]) -> tuple[CapturedGraph, ExportedGraph, DeviceWeights]:
        """Return the export for the sizes of `inputs` and the current weights.

        Raises RefusedError.
        """
        captured = self._captured
        weights = {i: inputs[i] for i in captured.weights}
        device_weights = self._weights(weights)
        if device_weights is None:
            return self._prepare(inputs)
        shapes = [tuple(inputs[i].shape) for i in captured.tensors]
        numbers = tuple(number(inputs[i]) for i in captured.numbers)
        for exported in self._exports:
            if exported.takes(shapes, numbers):
                return captured, exported, device_weights
        if len(self._exports) == EXPORTS:
            raise RefusedError(
                f"it was called with more than {EXPORTS} sets of sizes, each exported anew"
            )
        exported = export(captured, inputs)
        self._exports.append(exported)
        return captured, exported, device_weights

    def _weights(self, weights: Mapping[int, Any]) -> DeviceWeights | None:
        """Return the DeviceWeights of `weights`: new ones where these are new or were changed.

        None where some weights change so often that they became inputs of the graph.
        """
        key = tuple(map(id, weights.values()))
        device_weights, renewed = self._device_weights.get(key), False
        if device_weights is not None and device_weights.is_of(weights):
            renewed = True
            changed = device_weights.changed(weights)
            if not changed:
                device_weights.runs += 1
                self._device_weights.move_to_end(key)
                return device_weights
            if device_weights.runs:
                self._restless.clear()
            self._restless.update(changed)
            restless = [i for i, count in self._restless.items() if count >= RESTLESS]
            if restless:
                LOG.info(
                    "%s: weights change in each call: inputs from now on",
                    describe_graph(self._graph),
                )
                self._captured = self._captured.with_inputs(restless)
                self._exports.clear()
                self._device_weights.clear()
                return None
        for dead in [k for k, one in self._device_weights.items() if not one.alive]:
            del self._device_weights[dead]
        device_weights = self._device_weights[key] = DeviceWeights(weights, renewed)
        if len(self._device_weights) > MODULES:
            self._device_weights.popitem(last=False)
        return device_weights

    def _compare(
        self, captured: CapturedGraph, inputs: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """Compare `results` with PyTorch's. Raises RefusedError where they differ."""
        expected = self._graph(*inputs)
        for i, got in zip(captured.computed, results, strict=True):
            wrong = difference(got, expected[i], str(self._options.get("precision", "")))
            if wrong:
                raise RefusedError(f"output {i} is not PyTorch's: {wrong}")


def difference(got: Any, expected: Any, precision: str = "") -> str:
    """Describe the difference of two tensors; empty where they are equal within the tolerance.

    precision: of the weights, as InferenceSession's.
    """
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"{got.dtype} {tuple(got.shape)}, not {expected.dtype} {tuple(expected.shape)}"
    ours, theirs = got.numpy(), expected.detach().resolve_neg().numpy()
    if not got.is_floating_point():
        wrong = np.count_nonzero(ours != theirs)
        return f"{wrong} of {ours.size} numbers differ" if wrong else ""
    low = "float16" if str(ours.dtype) == "float16" else "float32"
    tolerance = max(TOLERANCE[low], TOLERANCE.get(precision, 0.0))
    error = relative_error(ours, theirs.astype(np.float64))
    return "" if error <= tolerance else f"off by {error:.1e}, more than {tolerance:g}"


def _array(tensor: Any) -> Array:
    """Return `tensor` as an array that shares its memory."""
    array: Array = tensor.detach().resolve_neg().numpy()
    return array


def _tensor(array: Array, others: Any) -> Any:
    """Return `array` as a tensor with writeable memory that `others` do not share."""
    is_usable = array.flags.writeable and array.flags.c_contiguous
    if not is_usable or any(np.may_share_memory(array, other) for other in others):
        array = array.copy(order="C")
    return torch.from_numpy(array)
