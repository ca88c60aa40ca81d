"""Nodes of indices by NumPy: scattering with a reduction, and OneHot, of integers no kernel has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.types import Array

Attributes = Mapping[str, Any]
REDUCTIONS: Mapping[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def scatter_elements(
    attributes: Attributes, version: int, x: Array, index: Array, updates: Array
) -> list[Array]:
    """Return x with each of `updates` reduced into the number that `index` names along an axis."""
    axis = attributes.get("axis", 0)
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(
            f"ScatterElements: axis must be from {-x.ndim} to {x.ndim - 1}, got {axis}"
        )
    if index.shape != updates.shape or index.ndim != x.ndim:
        raise ShapeError(
            f"ScatterElements: indices and updates must have one shape of {x.ndim} dimensions, "
            f"got {index.shape} and {updates.shape}"
        )
    axis %= x.ndim
    if any(n > m for i, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)) if i != axis):
        raise ShapeError(f"ScatterElements: indices {index.shape} are more than x {x.shape} has")
    places: list[Array] = list(np.indices(index.shape, sparse=True))
    places[axis] = _in_range("ScatterElements", index, x.shape[axis])
    found = x.copy()
    _reduction("ScatterElements", attributes, x).at(found, tuple(places), updates)
    return [found]


def scatter_nd(
    attributes: Attributes, version: int, x: Array, index: Array, updates: Array
) -> list[Array]:
    """Return x with each part of `updates` reduced into the part that a row of `index` names."""
    depth = index.shape[-1] if index.ndim else 0
    if not index.ndim or depth > x.ndim:
        raise ShapeError(
            f"ScatterND: indices must have rows of at most {x.ndim} numbers, got {index.shape}"
        )
    shape = index.shape[:-1] + x.shape[depth:]
    if updates.shape != shape:
        raise ShapeError(f"ScatterND: updates must be {shape}, got {updates.shape}")
    places = tuple(
        _in_range("ScatterND", index[..., i], size) for i, size in enumerate(x.shape[:depth])
    )
    found = x.copy()
    _reduction("ScatterND", attributes, x).at(found, places, updates)
    return [found]


def one_hot(
    attributes: Attributes, version: int, index: Array, depth: Array, values: Array
) -> list[Array]:
    """Return values[1] at the place that an index says along a new axis, values[0] elsewhere."""
    axis, rank = attributes.get("axis", -1), index.ndim + 1
    if not -rank <= axis < rank or depth.size != 1 or values.shape != (2,) or int(depth.item()) < 0:
        raise ShapeError(
            f"OneHot: axis must be from {-rank} to {rank - 1}, depth one number of at least 0 and "
            f"values two, got {axis}, {depth.tolist()} and the shape {values.shape}"
        )
    count, places = int(depth.item()), np.expand_dims(index, axis)
    found = np.full([*index.shape[: axis % rank], count, *index.shape[axis % rank :]], values[0])
    there = (places >= -count) & (places < count) if index.dtype.kind != "u" else places < count
    whole = np.where(there, places, 0).astype(np.int64) % max(count, 1)
    spread = np.arange(count).reshape(-1, *(1,) * (rank - 1 - axis % rank))
    found[there & (whole == spread)] = values[1]
    return [found]


def _reduction(operator: str, attributes: Attributes, x: Array) -> np.ufunc:
    """Return the ufunc of a node. Raises UnsupportedOpError for what is no integer or float."""
    name = attributes.get("reduction", b"none").decode()
    if name not in REDUCTIONS or x.dtype.kind not in "iuf":
        raise UnsupportedOpError(f"{operator}: the reduction {name!r} of {x.dtype}")
    return REDUCTIONS[name]


def _in_range(operator: str, index: Array, size: int) -> Array:
    """Return indices, of which negative ones count from the end."""
    if index.size and not (-size <= index.min() and index.max() < size):
        raise ShapeError(
            f"{operator}: indices must be from {-size} to {size - 1}, "
            f"got {index.min()} to {index.max()}"
        )
    return index


NODES: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("", "OneHot"): one_hot,
    ("", "ScatterElements"): scatter_elements,
    ("", "ScatterND"): scatter_nd,
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""
