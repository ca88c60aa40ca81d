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

FEW = 8  # numbers of inputs that decide sizes: all below this are of one range
FACTOR = 4  # sizes of one plan differ by less: from 2, 8, 32, 128, ... on
LOG = logging.getLogger(__name__)
MOST_RANGES = 32
"""Plans of one graph that are kept: two open dimensions up to 511 have 25 ranges."""
MOST_SPECIALIZED = 2
"""Plans that failed with SymInts, or hold for little but one size: then no more are made."""


def _name(value: Value, axis: int, dim: str) -> str:
    """Return the name of an open dimension's symbol; each without a name in the model differs."""
    return f"{value.name}.{axis}" if dim == UNKNOWN else dim


def open_shape(value: Value, dims: Mapping[str, int]) -> Shape:
    """Return the shape of an input, with the sizes `dims` of its open dimensions, by symbol."""
    pairs = enumerate(value.type.dims)
    return tuple(dims[_name(value, i, d)] if isinstance(d, str) else d for i, d in pairs)


def _sizes(graph: Graph, shapes: Mapping[str, Shape]) -> dict[str, int] | None:
    """Return the sizes of the open dimensions of inputs of `shapes`, by symbol.

    None where an input has another rank, a symbol stands for two sizes, or a known size is another
    one, as in parts of a graph whose types say of min(length, 3) that it is 3.
    """
    result: dict[str, int] = {}
    for value in graph.inputs:
        if len(value.type.dims) != len(shapes[value.name]):  # only a run tells its rank
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
    """Return what people are told of the range that `size` is in: 1, 2-7, 8-31, ..."""
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
        """Return those for inputs of `shapes`; None where these do not fit or gain nothing.

        A range gains nothing where no number decides and no size is larger than 1. A size of 0
        stays: what follows from it, as a decoder's first step of empty caches, has its own plan.
        shape_inputs: the inputs whose numbers decide sizes or branches.
        """
        if any(array.dtype.kind not in "iub" for array in shape_inputs.values()):
            return None
        sizes = _sizes(graph, shapes)
        if sizes is None:
            return None
        single_plan_graph = all(size <= 1 for size in sizes.values())
        if single_plan_graph and not shape_inputs:
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
            one_size = single_plan_graph or name in exact or not size
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
            decides = array.dtype.kind == "b"  # which branch is taken, by which a plan is for one
            made = np.empty(array.shape, bool if decides else object)
            for place, one in enumerate(int(one) for one in array.flat):
                symbol = f"{name}[{place}]"
                ends = (0, FEW - 1) if one < FEW else bounds_of(one)
                if one < 0 or decides:  # negative: from the end, or what is left, as -1 is
                    ends = (one, one)
                made.flat[place] = trace.symbol(symbol, one, ends)
                symbols[symbol] = Symbol(symbol, name, place, *ends, is_number=True)
                sizes[symbol] = one
            numbers[name] = made if decides or is_symbolic(made) else array
        hints = tuple(sizes[name] for name in symbols)
        return cls(tuple(symbols.values()), hints, open_shapes, numbers, trace)

    @property
    def domain(self) -> SizeRange:
        """The sizes for which a plan with these symbols holds."""
        return SizeRange(self.symbols, self.sizes, lambda: tuple(self.trace.guards))


class RangePlan(Protocol):
    """A plan, or a graph in parts, that serves a range of sizes."""

    def admits(self, feeds: Mapping[str, Feed]) -> bool:
        """Return True where it is for inputs such as `feeds`."""


P = TypeVar("P", bound=RangePlan)


class RangePlans(Generic[P]):
    """A list of plans that serve a range of sizes each, the one used last first.

    Not for several threads at once.
    """

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
        except Exception as error:  # what a SymInt is no good for numbers are, or raise it again
            LOG.debug("%s: no plan for a range: %s", graph.name, error, exc_info=True)
            # Sizes that do not fit, or are too large, are so without SymInts, too.
            passing = (ShapeError, LimitError, DeviceError, MemoryError)
            self._specialized += not isinstance(error, passing)
            return None
        trace = sizes.trace
        LOG.debug("%s: a plan for %s, %d guards", graph.name, trace.bounds, len(trace.guards))
        self._specialized += trace.pinned
        self.plans.insert(0, plan)
        del self.plans[MOST_RANGES:]
        return plan
