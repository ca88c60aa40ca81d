"""Runs of a plan, whoever made it: inputs, every step, outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic

import numpy as np

from glnn.arrays import check_indices, check_small
from glnn.errors import ModelError
from glnn.process import ProcessLock
from glnn.running.ends import Ends, Output
from glnn.running.lanes import L, Lanes
from glnn.running.run import Begun, apart, check_out
from glnn.running.store import Performer
from glnn.types import Array, DType, as_float, narrowed, to_float16


class Runner(ABC, Generic[L]):
    """Launches in order, ready to run for one set of input shapes. Any thread may use it.

    performer: where. lanes: what runs are done in. ends: the inputs and outputs. lock: what a run
    holds where no device has them take turns; None is one of its own.
    """

    def __init__(
        self,
        performer: Performer,
        lanes: Lanes[L],
        ends: Ends,
        lock: AbstractContextManager[None] | None = None,
    ) -> None:
        self._performer, self._lanes, self.ends = performer, lanes, ends
        # The host has several threads run at once, those of a device run one by one.
        on_host = ProcessLock() if lock is None else lock
        self._lock = on_host if performer.device is None else nullcontext()
        self.outputs = tuple(one.name for one in ends.outputs)
        """The names of the outputs."""
        self._taken = {one.name: one for one in ends.outputs}
        self._fixed = frozenset(ends.fixed())
        self._floats = frozenset(one.name for one in ends.inputs if one.takes is DType.float32)
        self._narrowed = tuple(one.name for one in ends.inputs if one.narrowed)
        self._small = tuple(one.name for one in ends.inputs if one.small)
        self._indices = tuple(one for one in ends.inputs if one.below)

    @abstractmethod
    def fixed(self, name: str) -> Array:
        """The output of that name, which no run changes: a new array."""

    def _inner(self, name: str) -> Output:
        """The tensor called `name`, which is no output. Raises ModelError where it is not kept."""
        raise ModelError(f"a plan of {', '.join(map(repr, self.outputs))} keeps no tensor {name!r}")

    def _before(self, names: Sequence[str]) -> None:
        """What is done before a run that is asked for these outputs. Only inside `perform`."""

    def upload(self, feeds: Mapping[str, Array]) -> None:
        """Move the inputs, arrays of the plan's shapes and of their own types, to the device."""
        self._performer.perform(lambda: self._upload(self._lanes.only(), feeds))

    def _upload(self, lane: L, feeds: Mapping[str, Array]) -> None:
        arrays = {
            name: as_float(feeds[name]) if name in self._floats else feeds[name]
            for name in lane.inputs
        }
        for one in self._indices:
            check_indices(one.called or f"input {one.name!r}", feeds[one.name], one.below)
        for name in self._small:
            check_small(name, feeds[name])
        for name in self._narrowed:
            arrays[name] = narrowed(f"input {name!r}", arrays[name])
        lane.upload(arrays)

    def perform(self) -> None:
        """Perform every step, without waiting for the device."""
        self._performer.perform(lambda: self._lanes.only().perform())

    def download(self) -> dict[str, Array]:
        """The outputs, waiting for them."""
        return self._performer.perform(
            lambda: self._asked(self._lanes.latest, self.outputs, {}).results()
        )

    def run(
        self,
        feeds: Mapping[str, Array],
        outputs: Iterable[str] | None = None,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """The outputs for `feeds`: one upload, every step, one readback.

        feeds: each input's name and its array of the plan's shape. outputs: the names of those
        that are wanted, None for all; no others are read back. out: arrays that some of these are
        to be written to, each of its output's shape and dtype. Weights that were assigned since
        the last run are uploaded before. Where no outputs are wanted, nothing is waited for.
        """
        names = None if outputs is None else tuple(outputs)
        return self._performer.perform(lambda: self.inside(feeds, names, out))

    def inside(
        self,
        feeds: Mapping[str, Array],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """The same as `run`, for callers that are inside `Performer.perform`."""
        with self._lock:
            if outputs == () and self._performer.device is not None:
                self.begin(feeds, outputs, out)  # and wait for nothing
                return {}
            return self._begun(feeds, outputs, out).results()

    def begin(
        self,
        feeds: Mapping[str, Array],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Array] | None = None,
    ) -> Begun:
        """Have the device begin with a run, for callers that are inside `Performer.perform`.

        Where as many are under way as the plan has room for, the first of them is waited for.
        """
        run = self._begun(feeds, outputs, out)
        run.fence = self._performer.fence()
        self._lanes.add(run)
        return run

    def _begun(
        self,
        feeds: Mapping[str, Array],
        outputs: tuple[str, ...] | None,
        out: Mapping[str, Array] | None,
    ) -> Begun:
        self._before(outputs or ())
        if out:
            self._check(out)
        lane = self._lanes.free()
        self._upload(lane, apart(feeds, out) if out else feeds)
        lane.perform()
        return self._asked(lane, self.outputs if outputs is None else outputs, out or {})

    def _check(self, out: Mapping[str, Array]) -> None:
        """Raise ShapeError unless the arrays `out` can take the outputs of these names."""
        for one in self.ends.outputs:
            if one.name in out:
                check_out(one.name, out[one.name], one.shape, one.dtype)

    def _asked(self, lane: L, names: Sequence[str], out: Mapping[str, Array]) -> Begun:
        """The run that was begun in `lane`, whose outputs `names` are on their way."""
        computed = [name for name in names if name not in self._fixed]
        return Begun(lane, names, computed, lambda name: self._found(lane, name, out.get(name)))

    def _found(self, lane: L, name: str, out: Array | None) -> Array:
        """The tensor called `name` as a run in `lane` left it, in `out` or in a new array."""
        return self._as(self._taken.get(name) or self._inner(name), lane, out)

    def _as(self, output: Output, lane: L, out: Array | None) -> Array:
        """The tensor that `output` says, as `_found` has it."""
        dtype, to = output.dtype, None
        if output.fixed:
            found = self.fixed(output.name)  # else who changes it changes the plan's
        else:
            store = lane.stores[output.name]
            if out is not None and dtype is not DType.float16:
                to = out.reshape(store.shape)
            found = store.fetch(to).reshape(output.shape)
        if dtype is DType.float16:
            found = to_float16(found)
        elif dtype is DType.int64:
            found = found.astype(np.int64, copy=False)
        else:
            found = as_float(found)
        if out is None:
            return found
        if to is None or not np.may_share_memory(to, out):  # to reshape it was to copy it
            out[...] = found
        return out
