"""Operands of the doctor's problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from glnn.core.types import Array, DType
from glnn.kernels.op_spec import OpSpec


def numbers(rng: Callable[[tuple[int, ...]], Array], spec: OpSpec) -> dict[str, Array]:
    """Operands of `spec`: normal float32 numbers, and integers from -5 to 99."""
    integers = np.random.default_rng(7).integers
    return {
        name: rng(one.shape)
        if one.dtype is DType.float32
        else integers(-5, 100, one.shape).astype(one.dtype.numpy)
        for name, one in spec.operands
    }


def precise(operands: Mapping[str, Array]) -> dict[str, Array]:
    """The same, what is float32 in float64."""
    return {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in operands.items()
    }
