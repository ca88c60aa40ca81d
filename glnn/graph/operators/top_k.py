"""The indices of the greatest or least numbers of rows, in order."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from glnn.core.symint import greatest, is_integer
from glnn.core.types import Array, DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.interval import Interval
from glnn.graph.operator import Constants, Cost, Intervals, Operands, Operator, Shapes, Types

SELECTED = (64, 512)
"""The greatest k of the kernels that keep the first numbers of a row in shared memory."""
PART = 4 * SELECTED[0]
"""The fewest numbers of a part of a row."""
ABSENT = np.int32(2**31 - 1)
"""The index that pads a list."""
SHORT = 256
"""The most numbers of a row of which each is compared with all."""


def top_indices(x: Array, k: int, largest: bool) -> NDArray[np.int64]:
    """Return the indices (..., k) of the `k` first numbers of x (..., n) along its last axis.

    The order is descending if `largest`, else ascending; of equal numbers the first comes first.
    NaN is the greatest number.
    """
    n, dims = x.shape[-1], x.shape[:-1]
    keys = x.reshape(prod(dims), n)
    if (x.dtype.kind == "f" and x.dtype.itemsize < 4) or x.dtype.kind not in "iuf":
        keys = keys.astype(np.float32)
    return _top_of_rows(keys, k, largest).reshape(*dims, k)


def _top_of_rows(keys: Array, k: int, largest: bool) -> NDArray[np.int64]:
    n = keys.shape[1]
    if not k or not keys.size:
        return np.zeros((len(keys), k), np.int64)
    if k * 4 > n or (keys.dtype.kind == "f" and np.isnan(keys).any()):
        return _sorted_indices(keys, largest)[:, :k]
    last_index = n - k if largest else k - 1
    last = np.partition(keys, last_index, axis=1)[:, last_index : last_index + 1]
    chosen = keys > last if largest else keys < last
    # Of the numbers that equal the last one, the first are chosen, as many as are missing.
    equal = keys == last
    missing = k - np.count_nonzero(chosen, axis=1)
    if np.array_equal(np.count_nonzero(equal, axis=1), missing):
        chosen |= equal
    else:
        chosen |= equal & (np.cumsum(equal, axis=1) <= missing[:, None])
    result: NDArray[np.int64] = np.flatnonzero(chosen).reshape(len(keys), k)
    result -= np.arange(len(keys))[:, None] * n
    order = _sorted_indices(np.take_along_axis(keys, result, 1), largest)
    result = np.take_along_axis(result, order, 1)
    return result


def _sorted_indices(keys: Array, largest: bool) -> NDArray[np.int64]:
    if not largest:
        return np.argsort(keys, axis=1, kind="stable")
    from_last = np.argsort(keys[:, ::-1], axis=1, kind="stable")[:, ::-1]
    indices: NDArray[np.int64] = keys.shape[1] - 1 - from_last
    return indices


def _in_order(numbers: Array, largest: bool) -> Array:
    """Return numbers in order along the last axis."""
    ascending = np.sort(numbers, -1)
    return ascending[..., ::-1] if largest else ascending


def _top_places(x: Array, places: Array | None, span: slice, k: int, largest: bool) -> Array:
    """Return the indices of the `k` first numbers of x in `span`, or in `span` of `places`."""
    if places is None:
        numbers = x[..., span]
        first = top_indices(numbers, min(k, numbers.shape[-1]), largest)
        return np.asarray(first + (span.start or 0), np.int32)
    places = places[..., span]
    numbers = np.take_along_axis(x, places, -1)
    first = top_indices(numbers, min(k, numbers.shape[-1]), largest)
    return np.take_along_axis(places, first, -1)


def _with_types(operands: Operands) -> Operands:
    """Return `operands` with the type int32 for `places` given by its shape alone."""
    places = operands.get("places")
    if places is None or isinstance(places, TensorType):
        return operands
    return {**operands, "places": TensorType(places, DType.int32)}


class _TopOperator(Operator):
    """Base class of operators that sort indices of x along the last axis by its numbers.

    x: (..., n), int or float. Numbers are in descending order, or ascending where `largest` is
    False; of equal ones the first comes first. NaN is the greatest number, -0 equals 0.
    """

    optional: ClassVar[tuple[str, ...]] = ("places",)
    k: int
    largest: bool

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "places")

    def _types(self, types: Types) -> tuple[TensorType, TensorType | None]:
        """Return the types of x and of `places`. Raises ShapeError where they do not fit."""
        operands = self.named(types)
        x, places = operands["x"], operands.get("places")
        if not x.dims or x.dtype.kind not in ("int", "float"):
            raise ShapeError(f"{self.name}: x must be int or float of (..., n), got {x}")
        if places is not None and (
            places.dtype is not DType.int32 or places.dims[:-1] != x.dims[:-1]
        ):
            shape = ", ".join(map(str, (*x.dims[:-1], "m")))
            raise ShapeError(f"{self.name}: places must be int32 ({shape}), got {places}")
        return x, places

    def cost(self, types: Types) -> Cost:
        operands = [one for one in types if one is not None]
        moved = (prod(t.shape) * t.dtype.numpy.itemsize for t in (*operands, *self.infer(types)))
        return Cost(0, sum(moved))

    def results(self, operands: Operands) -> tuple[TensorType, ...]:
        return super().results(_with_types(operands))

    def cost_of(self, operands: Operands) -> Cost:
        return super().cost_of(_with_types(operands))

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        return tuple(shapes) if len(shapes["x"]) > 1 else ()

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        """Return numbers of which many are equal, and for `places` all indices in order."""
        if name == "x" and numbers.dtype.kind == "f":
            return np.asarray(np.round(numbers * 64) / 64, numbers.dtype)
        if name == "places":
            return np.broadcast_to(np.arange(numbers.shape[-1], dtype=np.int32), numbers.shape)
        return numbers


@dataclass(frozen=True)
class TopK(_TopOperator):
    """The indices of the `k` first numbers along the last axis in order, int32 (..., k).

    places: (..., m) int32, the distinct indices of the candidates; all without it. With `parts` the
    candidates are divided into so many runs, whose lengths differ by one at most, and the result
    has the first `k` of each, (..., parts * k).
    """

    name: ClassVar[str] = "top_k"
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    k: int
    largest: bool = True
    parts: int = 1

    def __post_init__(self) -> None:
        if not is_integer(self.k) or self.k < 0 or not is_integer(self.parts) or self.parts < 1:
            raise ShapeError(
                f"top_k: k must be an integer of at least 0 and parts of at least 1, got "
                f"{self.k!r} and {self.parts!r}"
            )

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x, places = self._types(types)
        n = (places or x).dims[-1]
        if is_integer(n) and self.k > n // self.parts:
            least = f" of each of {self.parts} parts" if self.parts > 1 else ""
            raise ShapeError(f"top_k: k must be from 0 to the {n} numbers{least}, got {self.k}")
        return (TensorType((*x.dims[:-1], self.parts * self.k), DType.int32),)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        self.infer([None if one is None else TensorType.from_array(one) for one in arrays])
        operands = self.named(arrays)
        x, places = operands["x"], operands.get("places")
        n = (x if places is None else places).shape[-1]
        ends = [i * (n // self.parts) + min(i, n % self.parts) for i in range(self.parts + 1)]
        runs = list(pairwise(ends))
        if places is not None:
            places = np.concatenate([np.sort(places[..., i:j], -1) for i, j in runs], -1)
        parts = [_top_places(x, places, slice(*run), self.k, self.largest) for run in runs]
        return (np.concatenate(parts, -1),)

    def value_ranges(self, intervals: Intervals, types: Types) -> tuple[Interval, ...]:
        return (Interval(0, max(greatest(self.named(types)["x"].shape[-1]) - 1, 0)),)

    def narrow(self, intervals: Intervals, types: Types) -> TopK:
        return self

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        *rows, n = shapes["x"]
        m = shapes["places"][-1] if "places" in shapes else n
        return {
            "rows": prod(rows),
            "sample_rows": prod(rows[1:]),
            "lines": prod(rows) * self.parts,
            "parts": self.parts,
            "n": n,
            "m": m,
            "k": self.k,
        }

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return "kept", the least of SELECTED that is at least `k`, "whole", 1 where all numbers
        of a row are candidates, "short", 1 where rows are SHORT, and "divisible", 1 where they are
        at least two parts.
        """
        capacity = next((most for most in SELECTED if self.k <= most), SELECTED[-1] + 1)
        whole = self.parts == 1 and "places" not in shapes
        n = shapes["x"][-1]
        return {
            "kept": capacity,
            "whole": int(whole),
            "short": int(whole and n <= SHORT),
            "divisible": int(whole and n >= 2 * PART),
        }

    def depth(self, shapes: Shapes) -> int:
        return self.sizes(shapes)["m"]


@dataclass(frozen=True)
class MergeTopK(_TopOperator):
    """Pairs of neighbouring sorted lists of `length` indices, merged: the `k` first of each pair.

    places: (..., m) int32, contiguous lists, all indices of a list below those of the next one; all
    indices without it. Only the last list may be padded at its end, with ABSENT. Result: int32
    (..., pairs * most), the merged lists of most = min(k, 2 length) indices.
    """

    name: ClassVar[str] = "merge_top_k"
    k: int
    largest: bool
    length: int

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        x, places = self._types(types)
        return (TensorType((*x.dims[:-1], self._size((places or x).shape[-1])), DType.int32),)

    def _size(self, m: int) -> int:
        """Return the size of the result along the last axis. m: that of the lists."""
        return -(-m // (2 * self.length)) * self.most

    @property
    def most(self) -> int:
        """The number of indices of a merged list."""
        return self.k if self.k < 2 * self.length else 2 * self.length

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        operands = self.named(arrays)
        (result,) = self.infer(
            [None if one is None else TensorType.from_array(one) for one in arrays]
        )
        x, places = operands["x"], operands.get("places")
        *dims, n = x.shape
        if places is None:
            places = np.broadcast_to(np.arange(n, dtype=np.int32), x.shape)
        merged = np.full((*dims, result.shape[-1] // max(self.most, 1), self.most), ABSENT)
        step = 2 * self.length
        present = int((places < n).sum(-1).max(initial=0))  # the same in all rows
        full = present // step
        pairs = places[..., : full * step]
        numbers = np.take_along_axis(x, pairs, -1).reshape(*dims, full, step)
        first = top_indices(numbers, self.most, self.largest)
        merged[..., :full, :] = np.take_along_axis(pairs.reshape(numbers.shape), first, -1)
        if present > full * step:
            last = _top_places(x, places, slice(full * step, present), self.most, self.largest)
            merged[..., full, : last.shape[-1]] = last
        return (merged.reshape(result.shape),)

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        """Return contiguous lists of sorted numbers, and for `places` all indices."""
        n = shapes["x"][-1]
        if name == "places":
            m = np.arange(numbers.shape[-1])
            return np.broadcast_to(np.where(m < n, m, ABSENT).astype(np.int32), numbers.shape)
        numbers = super().trial(name, numbers, shapes)
        remainder = n % self.length
        lists = numbers[..., : n - remainder].reshape(-1, self.length)
        ordered = (_in_order(one, self.largest) for one in (lists, numbers[..., n - remainder :]))
        parts = (one.reshape(*numbers.shape[:-1], -1) for one in ordered)
        return np.concatenate(list(parts), -1)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        *rows, n = shapes["x"]
        m = shapes["places"][-1] if "places" in shapes else n
        size = self._size(m)
        return {
            "sample_rows": prod(rows[1:]),
            "n": n,
            "m": m,
            "list": self.length,
            "most": self.most,
            "size": size,
            "results": prod(rows) * size,
        }
