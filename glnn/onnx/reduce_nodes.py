"""Roots and logarithms of sums of integers, by NumPy in 64 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from glnn.errors import UnsupportedOpError
from glnn.numeric import cast
from glnn.types import Array

Attributes = Mapping[str, Any]
Reduction = Callable[..., Array]


def _length(x: Array, **along: Any) -> Array:
    return np.asarray(np.sqrt(np.square(x).sum(**along)))


def _log_sum(x: Array, **along: Any) -> Array:
    return np.asarray(np.log(x.sum(**along)))


def _log_sum_exp(x: Array, **along: Any) -> Array:
    """The greatest number is taken off before, lest exponents are infinite, and added after."""
    if not x.size:
        return np.asarray(np.log(x.sum(**along)))
    most = x.max(along["axis"], keepdims=True)
    total = np.log(np.exp(x - most).sum(**along))
    return np.asarray(total + (most if along["keepdims"] else most.squeeze(along["axis"])))


def _node(operator: str, function: Reduction) -> Callable[..., list[Array]]:
    """Return what computes a node of integers: the results lose what is behind the point."""

    def reduced(
        attributes: Attributes, version: int, x: Array, axes: Array | None = None
    ) -> list[Array]:
        if x.dtype.kind not in "iu":
            raise UnsupportedOpError(f"{operator}: of {x.dtype}")
        listed = attributes.get("axes", ()) if axes is None else axes.tolist()
        whole = () if attributes.get("noop_with_empty_axes", 0) else tuple(range(x.ndim))
        along = tuple(listed) if len(listed) and x.ndim else whole
        keepdims = bool(attributes.get("keepdims", 1))
        found = function(x.astype(np.float64), axis=along, keepdims=keepdims)
        return [cast(x.dtype)(found)]

    return reduced


NODES: Mapping[tuple[str, str], Callable[..., Sequence[Array]]] = {
    ("", "ReduceL2"): _node("ReduceL2", _length),
    ("", "ReduceLogSum"): _node("ReduceLogSum", _log_sum),
    ("", "ReduceLogSumExp"): _node("ReduceLogSumExp", _log_sum_exp),
}
"""Functions of attributes, version and operands, by operator set and ONNX operator."""
