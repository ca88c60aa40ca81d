"""Operands of the doctor's problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from glnn.core.types import Array, DType
from glnn.kernels.op_spec import OpSpec


def numbers(rng: Callable[[tuple[int, ...]], Array], spec: OpSpec) -> dict[str, Array]:
    """Operands of `spec`: normal float32 numbers, and integers from -5 to 99; packed weights."""
    integers = np.random.default_rng(7).integers
    found = {
        name: rng(one.shape)
        if one.dtype is DType.float32
        else integers(-5, 100, one.shape).astype(one.dtype.numpy)
        for name, one in spec.operands
    }
    if spec.op.name.startswith("quantized_"):  # of random bits some numbers are none
        found["weight"] = spec.op.trial("weight", found["weight"], spec.op_shapes)
    if "factors" in found:  # of the transform
        found["factors"] = spec.op.trial("factors", found["factors"], spec.op_shapes)
    if "places" in found:  # of different rows
        found["places"] = spec.op.trial("places", found["places"], spec.op_shapes)
    return found


def precise(operands: Mapping[str, Array]) -> dict[str, Array]:
    """The same, what is float32 in float64."""
    return {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in operands.items()
    }
