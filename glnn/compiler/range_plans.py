"""The plans of a graph that serve a range of sizes each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from glnn.compiler.emit import SizeRange
from glnn.core.process import COLLECTOR
from glnn.core.symint import ShapeEnv, is_symbolic
from glnn.core.types import UNKNOWN, Array, Shape, TensorType
from glnn.errors import DeviceError, LimitError, ShapeError
from glnn.graph.graph import Graph, Value
from glnn.runtime.device_array import Feed
from glnn.runtime.executable import Symbol

FEW = 8  # numbers of inputs that decide sizes: all below this are in one range
FACTOR = 4  # the ratio of the ranges' ends: 2, 8, 32, 128, ...
LOG = logging.getLogger(__name__)
MOST_RANGES = 32
"""The most plans of one graph: two open dimensions up to 511 have 25 ranges."""
MOST_SPECIALIZED = 2
"""After so many plans failed with SymInts, or pinned a size, no more are made."""


def _name(value: Value, axis: int, dim: str) -> str:
    """Return the name of an open dimension's symbol: unique where the model gives it no name."""
    return f"{value.name}.{axis}" if dim == UNKNOWN else dim


def open_shape(value: Value, dims: Mapping[str, int]) -> Shape:
    """Return the shape of an input, with the sizes `dims` of its open dimensions, by symbol."""
    pairs = enumerate(value.type.dims)
    return tuple(dims[_name(value, i, d)] if isinstance(d, str) else d for i, d in pairs)


def _sizes(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, int] | None:
    """Return the sizes of the open dimensions of inputs of `shapes`, by symbol.

    None where an input has another rank, a symbol stands for two sizes, or a known size differs, as
    in parts of a graph whose types declare 3 for min(length, 3).
    """
    result: dict[str, int] = {}
    for value in graph.inputs:
        if len(value.type.dims) != len(shapes[value.name]):  # its rank is known only in a run
            return None
        for axis, (dim, size) in enumerate(zip(value.type.dims, shapes[value.name], strict=True)):
            if isinstance(dim, str):
                dim = result.setdefault(_name(value, axis, dim), size)
            if dim != size:
                return None
    return result


def bounds_of(size: int) -> tuple[int, int]:
    """Return the ends of the range that `size` is in: 1, 2 to 7, 8 to 31, 32 to 127, ..."""
    low = 2
    while size >= FACTOR * low:
        low *= FACTOR
    return (1, 1) if size == 1 else (low, FACTOR * low - 1)


def range_name(size: int) -> str:
    """Return the name of the range that `size` is in: 1, 2-7, 8-31, ..."""
    low, high = bounds_of(size)
    return str(size) if size < low or low == high else f"{low}-{high}"


@dataclass(frozen=True, eq=False)
class OpenSizes:
    """The open dimensions of a graph's inputs as SymInts, and the trace that collects guards."""

    symbols: tuple[Symbol, ...]
    sizes: tuple[int, ...]
    """The sizes of the symbols in the run that the plan is made for: their hints."""
    shapes: Mapping[str, Shape]
    """The inputs' shapes, with a SymInt for each open dimension."""
    shape_inputs: Mapping[str, Array]
    """Inputs whose numbers decide sizes, with SymInts for these."""
    trace: ShapeEnv

    @classmethod
    def create(
        cls,
        graph: Graph,
        shapes: Mapping[str, Shape],
        shape_inputs: Mapping[str, Array],
    ) -> OpenSizes | None:
        """Return the open sizes for inputs of `shapes`; None where these do not fit, or a range is
        of no use.

        It is of no use where no number decides and no size is larger than 1. A size of 0 is never
        open: a decoder's first step, of empty caches, has a plan of its own. shape_inputs: the
        inputs whose numbers decide sizes or branches.
        """
        if any(array.dtype.kind not in "iub" for array in shape_inputs.values()):
            return None
        sizes = _sizes(graph, shapes)
        if sizes is None:
            return None
        all_ones = all(size <= 1 for size in sizes.values())
        if all_ones and not shape_inputs:
            return None
        exact = {
            _name(value, axis, dim)
            for value in graph.inputs
            for axis, dim in enumerate(value.type.dims)
            if isinstance(dim, str) and value.name in shape_inputs  # so many numbers have symbols
        }
        trace, symbols = ShapeEnv(), dict[str, Symbol]()
        dims: dict[str, int] = {}
        for name, size in sizes.items():
            one_size = all_ones or name in exact or not size
            ends = (size, size) if one_size else bounds_of(size)
            dims[name] = trace.symbol(name, size, ends)
        for value in graph.inputs:
            for axis, dim in enumerate(value.type.dims):
                name = _name(value, axis, dim) if isinstance(dim, str) else ""
                if name in dims:
                    symbols.setdefault(name, Symbol(name, value.name, axis, *trace.bounds[name]))
        open_shapes = {v.name: open_shape(v, dims) for v in graph.inputs}
        numbers: dict[str, Array] = {}
        for name, array in shape_inputs.items():
            is_condition = array.dtype.kind == "b"  # a plan is for one branch
            traced = np.empty(array.shape, bool if is_condition else object)
            for i, number in enumerate(map(int, array.flat)):
                symbol = f"{name}[{i}]"
                ends = (0, FEW - 1) if number < FEW else bounds_of(number)
                if number < 0 or is_condition:  # -1 may mean the last place, or an inferred size
                    ends = (number, number)
                traced.flat[i] = trace.symbol(symbol, number, ends)
                symbols[symbol] = Symbol(symbol, name, i, *ends, is_number=True)
                sizes[symbol] = number
            numbers[name] = traced if is_condition or is_symbolic(traced) else array
        hints = tuple(sizes[name] for name in symbols)
        return cls(tuple(symbols.values()), hints, open_shapes, numbers, trace)

    @property
    def domain(self) -> SizeRange:
        """The sizes for which a plan with these symbols holds."""
        return SizeRange(self.symbols, self.sizes, lambda: tuple(self.trace.guards))


class RangePlan(Protocol):
    """A plan, or a graph in parts, that serves a range of sizes."""

    def admits(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where it can run inputs such as `feeds`."""


P = TypeVar("P", bound=RangePlan)


class RangePlans(Generic[P]):
    """The plans that each serve a range of sizes, most recently used first. Not thread-safe."""

    def __init__(self) -> None:
        self.plans: list[P] = []
        self._specialized = 0

    def find(self, feeds: Mapping[str, Feed]) -> P | None:
        """Return the plan whose guards admit inputs such as `feeds`, if there is one."""
        for i, plan in enumerate(self.plans):
            if plan.admits(feeds):
                if i:
                    self.plans.insert(0, self.plans.pop(i))
                return plan
        return None

    @COLLECTOR.relaxed()
    def add(
        self,
        graph: Graph,
        shapes: Mapping[str, Shape],
        shape_inputs: Mapping[str, Array],
        make: Callable[[Mapping[str, TensorType], Mapping[str, Array], SizeRange], P],
    ) -> P | None:
        """Return a new plan for a range of sizes around those of inputs of `shapes`.

        None where the graph has no open sizes, or cannot be planned with SymInts. shape_inputs: the
        inputs whose numbers decide sizes. make: makes the plan for types and numbers with SymInts.
        """
        exhausted = self._specialized >= MOST_SPECIALIZED
        sizes = None if exhausted else OpenSizes.create(graph, shapes, shape_inputs)
        if sizes is None:
            return None
        try:
            plan = make(graph.input_types(sizes.shapes), sizes.shape_inputs, sizes.domain)
        except Exception as error:  # the plan for exact sizes works, or raises its own error
            LOG.debug("%s: no plan for a range: %s", graph.name, error, exc_info=True)
            # These errors are due to the sizes, not to SymInts.
            of_sizes = (ShapeError, LimitError, DeviceError, MemoryError)
            self._specialized += not isinstance(error, of_sizes)
            return None
        trace = sizes.trace
        LOG.debug("%s: a plan for %s, %d guards", graph.name, trace.bounds, len(trace.guards))
        self._specialized += trace.pinned
        self.plans.insert(0, plan)
        del self.plans[MOST_RANGES:]
        return plan
