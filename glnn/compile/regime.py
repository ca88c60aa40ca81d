"""Open sizes of a graph's inputs, and within which bounds one plan is for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glnn.compile.emit import Domain
from glnn.graph.graph import Graph, Value
from glnn.runtime.executable import Symbol
from glnn.symint import Trace
from glnn.types import UNKNOWN, Array, Shape, TensorType

FEW = 8  # numbers below are of one range
FACTOR = 4  # a regime's sizes differ by less: from 2, 8, 32, 128, ... on


def _name(value: Value, axis: int, dim: str) -> str:
    """The symbol of an open dimension: each that a model gives no name is another one."""
    return f"{value.name}.{axis}" if dim == UNKNOWN else dim


def open_shape(value: Value, dims: Mapping[str, int]) -> Shape:
    """The shape of an input whose open dimensions are `dims`, by their symbols."""
    pairs = enumerate(value.type.dims)
    return tuple(dims[_name(value, i, d)] if isinstance(d, str) else d for i, d in pairs)


def symbols(
    graph: Graph, shapes: Mapping[str, Shape], *, batches: bool = False
) -> dict[str, int] | None:
    """The sizes of the open dimensions of the inputs of `graph` for inputs of `shapes`, by symbol.

    None where a symbol stands for two sizes, or nothing is gained: where all are 0 or 1, and unless
    `batches` where only the batch is open, of which a program has few and wants the fastest kernels
    for each.
    """
    found: dict[str, int] = {}
    batch = not batches
    for value in graph.inputs:
        if len(value.type.dims) != len(shapes[value.name]):  # only a run tells its rank
            return None
        for axis, (dim, size) in enumerate(zip(value.type.dims, shapes[value.name], strict=True)):
            if not isinstance(dim, str):
                continue
            if found.setdefault(_name(value, axis, dim), size) != size or not size:
                return None
            batch = batch and axis == 0
    return None if batch or all(size == 1 for size in found.values()) else found


def bounds_of(size: int) -> tuple[int, int]:
    """The least and the greatest size of the regime that `size` is in."""
    low = 2
    while size >= FACTOR * low:
        low *= FACTOR
    return (1, 1) if size == 1 else (low, FACTOR * low - 1)


def _is_known(graph: Graph, shapes: Mapping[str, Shape]) -> bool:
    """Return True where inputs of `shapes` have all sizes that `graph` says, by one size each."""
    found: dict[str, int] = {}
    for value in graph.inputs:
        if len(value.type.dims) != len(shapes[value.name]):
            return False
        for dim, size in zip(value.type.dims, shapes[value.name], strict=True):
            if isinstance(dim, str) and dim != UNKNOWN and found.setdefault(dim, size) != size:
                return False
    return True


@dataclass(frozen=True, eq=False)
class OpenSizes:
    """The open dimensions of a graph's inputs, and a trace of what is asked of them."""

    symbols: tuple[Symbol, ...]
    sizes: tuple[int, ...]
    """Those at hand."""
    shapes: Mapping[str, Shape]
    """The inputs' shapes, with a SymInt for each open dimension."""
    told: Mapping[str, Array]
    """Inputs whose numbers decide sizes, with SymInts for these."""
    trace: Trace

    @classmethod
    def of(
        cls,
        graph: Graph,
        shapes: Mapping[str, Shape],
        told: Mapping[str, Array],
        *,
        batches: bool = False,
    ) -> OpenSizes | None:
        """Those of inputs of `shapes`; None where nothing is gained by them: see `symbols`.

        told: the inputs whose numbers decide sizes or branches.
        """
        if any(array.dtype.kind not in "iu" or (array < 0).any() for array in told.values()):
            return None
        sizes = symbols(graph, shapes, batches=batches)
        if sizes is None:
            if not told or not _is_known(graph, shapes):
                return None
            sizes = {}
        exact = {
            _name(value, axis, dim)
            for value in graph.inputs
            for axis, dim in enumerate(value.type.dims)
            if isinstance(dim, str) and value.name in told  # so many numbers have symbols
        }
        trace, found = Trace(), dict[str, Symbol]()
        dims: dict[str, int] = {}
        for name, size in sizes.items():
            ends = (size, size) if name in exact else bounds_of(size)
            dims[name] = trace.symbol(name, size, ends)
        for value in graph.inputs:
            for axis, dim in enumerate(value.type.dims):
                name = _name(value, axis, dim) if isinstance(dim, str) else ""
                if name in dims:
                    found.setdefault(name, Symbol(name, value.name, axis, *trace.bounds[name]))
        open_shapes = {
            v.name: open_shape(v, dims) if dims else shapes[v.name] for v in graph.inputs
        }
        numbers: dict[str, Array] = {}
        for name, array in told.items():
            made = numbers[name] = np.empty(array.shape, object)
            for place, one in enumerate(int(one) for one in array.flat):
                symbol = f"{name}[{place}]"
                ends = (0, FEW - 1) if one < FEW else bounds_of(one)
                made.flat[place] = trace.symbol(symbol, one, ends)
                found[symbol] = Symbol(symbol, name, place, *ends, is_number=True)
                sizes[symbol] = one
        own = tuple(sizes[name] for name in found)
        return cls(tuple(found.values()), own, open_shapes, numbers, trace)

    @property
    def domain(self) -> Domain:
        """The sizes that what is planned of it is for."""
        return Domain(self.symbols, self.sizes, lambda: tuple(self.trace.guards))

    def types(self, graph: Graph) -> dict[str, TensorType]:
        """The types of the inputs."""
        return {v.name: v.type.of_shape(self.shapes[v.name]) for v in graph.inputs}
