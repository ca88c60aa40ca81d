"""Running a captured graph by sessions, and leaving to PyTorch what these do not take."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from glnn.errors import GlnnError, first_line
from glnn.graph.error import relative_error
from glnn.process import ProcessLock
from glnn.session import InferenceSession
from glnn.torch.captured import Captured, number
from glnn.torch.exporting import Exported, export, input_name, output_name
from glnn.torch.left import RefusedError, leave, name
from glnn.torch.weights import Held
from glnn.types import Array

LOG = logging.getLogger(__name__)
EXPORTS = 8  # of one graph, for sizes that one model does not take together
MODULES = 16  # that share a graph, whose sessions are kept
FAILURES = 3  # runs behind one another that fail before no more are tried
RESTLESS = 3  # changes behind one another before a weight is an input
TOLERANCE = {"float32": 1e-3, "float16": 1e-2, "int8": 5e-2}


class Passing(InferenceSession):
    """A session of weights that somebody is changing: nothing of it is kept on disk."""

    cache = None


class Compiled:
    """A graph that is computed by glnn, or by PyTorch where that is not possible.

    captured: the graph. options: of InferenceSession. check: whether the first result for each
    set of sizes is held against PyTorch's. Any thread may call it.
    """

    def __init__(self, captured: Captured, options: Mapping[str, Any], check: bool) -> None:
        self._captured, self._options, self._check = captured, dict(options), check
        self._graph = captured.graph
        self._lock = ProcessLock()
        self._exports: list[Exported] = []
        self._held: OrderedDict[tuple[int, ...], Held] = OrderedDict()
        self._restless: Counter[int] = Counter()
        self._failures = 0
        self.left = ""
        """Why it is PyTorch's; empty where it is glnn's."""

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """The outputs for `inputs`, as the graph has them: tensors of their own, or views."""
        if self.left:
            return self._graph(*inputs)  # type: ignore[no-any-return]
        try:
            outputs = self._run(inputs)
            self._failures = 0
            return outputs
        except RefusedError as error:
            self.left = str(error)
        except GlnnError as error:  # for want of memory, a lost device, a number beyond int32
            if type(error) is GlnnError:  # an option that is none
                raise
            self._failures += 1
            reason = f"{type(error).__name__}: {first_line(error)}"
            if self._failures < FAILURES:
                leave(self._graph, f"this time, {reason}")
                return self._graph(*inputs)  # type: ignore[no-any-return]
            self.left = reason
        leave(self._graph, self.left)
        self._held.clear()
        return self._graph(*inputs)  # type: ignore[no-any-return]

    @property
    def sessions(self) -> tuple[InferenceSession, ...]:
        """Those that there are, for each module and set of sizes that shares the graph."""
        with self._lock:
            return tuple(one for held in self._held.values() for one in held.sessions.values())

    def _run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        with self._lock:
            captured, exported, held = self._prepared(inputs)
            session = held.sessions.get(exported)
            made = session is None
            if session is None:
                weights = {i: inputs[i] for i in captured.weights}
                kind = Passing if held.renewed else InferenceSession
                session = kind(exported.model(weights), **self._options)
                held.sessions[exported] = session
        names = {info.name for info in session.get_inputs()}
        feeds = {input_name(i): _array(inputs[i]) for i in captured.tensors}
        feeds = {key: array for key, array in feeds.items() if key in names}
        wanted = [output_name(i) for i in captured.computed]
        results = [_tensor(array, feeds.values()) for array in session.run(wanted, feeds)]
        if made:  # only now is it known what `auto` takes
            LOG.info("%s runs on %s", name(self._graph), session.backend.name)
        if self._check:
            shapes = tuple(tuple(inputs[i].shape) for i in captured.tensors)
            if (exported, shapes) not in held.checked:
                self._compare(captured, inputs, results)
                held.checked.add((exported, shapes))
        if captured.rest is None:
            return results
        others = list(captured.rest(*inputs))
        known, rest = dict(zip(captured.computed, results, strict=True)), iter(others)
        return [known[i] if i in known else next(rest) for i in range(len(known) + len(others))]

    def _prepared(self, inputs: Sequence[Any]) -> tuple[Captured, Exported, Held]:
        """The model for such inputs and the weights as they are now. Raises RefusedError."""
        captured = self._captured
        weights = {i: inputs[i] for i in captured.weights}
        held = self._weights(weights)
        if held is None:
            return self._prepared(inputs)
        shapes = [tuple(inputs[i].shape) for i in captured.tensors]
        numbers = tuple(number(inputs[i]) for i in captured.numbers)
        for exported in self._exports:
            if exported.takes(shapes, numbers):
                return captured, exported, held
        if len(self._exports) == EXPORTS:
            raise RefusedError(
                f"it was called with more than {EXPORTS} sets of sizes, each exported anew"
            )
        exported = export(captured, inputs)
        self._exports.append(exported)
        return captured, exported, held

    def _weights(self, weights: Mapping[int, Any]) -> Held | None:
        """What is held of these weights, new where there was nothing or they were changed.

        None where some of them are inputs from now on.
        """
        key = tuple(map(id, weights.values()))
        held, renewed = self._held.get(key), False
        if held is not None and held.is_of(weights):
            renewed = True
            changed = held.changed(weights)
            if not changed:
                held.runs += 1
                self._held.move_to_end(key)
                return held
            if held.runs:
                self._restless.clear()
            self._restless.update(changed)
            moved = [i for i, count in self._restless.items() if count >= RESTLESS]
            if moved:
                LOG.info("%s: weights change in each call: inputs from now on", name(self._graph))
                self._captured = self._captured.with_inputs(moved)
                self._exports.clear()
                self._held.clear()
                return None
        for other in [k for k, one in self._held.items() if not one.alive]:
            del self._held[other]
        held = self._held[key] = Held(weights, renewed)
        if len(self._held) > MODULES:
            self._held.popitem(last=False)
        return held

    def _compare(self, captured: Captured, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Hold `results` against PyTorch's. Raises RefusedError where they differ."""
        expected = self._graph(*inputs)
        for place, got in zip(captured.computed, results, strict=True):
            wrong = difference(got, expected[place], str(self._options.get("precision", "")))
            if wrong:
                raise RefusedError(f"output {place} is not PyTorch's: {wrong}")


def difference(got: Any, expected: Any, precision: str = "") -> str:
    """In what `got` is not as `expected`, two tensors; empty where it is.

    precision: of the weights, as InferenceSession has it.
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
    """The numbers of `tensor`, which are not copied."""
    array: Array = tensor.detach().resolve_neg().numpy()
    return array


def _tensor(array: Array, given: Any) -> Any:
    """A tensor of memory of its own: `array`, unless that is somebody else's."""
    own = array.flags.writeable and array.flags.c_contiguous
    if not own or any(np.may_share_memory(array, other) for other in given):
        array = array.copy(order="C")
    return torch.from_numpy(array)
