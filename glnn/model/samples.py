"""Conversion of samples from files to a model's input."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from glnn.core.tensor_info import TensorInfo, show
from glnn.core.types import Array, DType, Shape, to_float32
from glnn.errors import ShapeError


def check_samples(shape: Shape, dtype: np.dtype[Any], info: TensorInfo, what: str) -> None:
    """Raise ShapeError, which begins with `what`, unless `fit_samples` takes such an array."""
    converted = {DType.float32: (np.uint8, np.float64), DType.int32: (np.int64,)}
    if dtype != info.dtype.numpy and dtype not in converted.get(info.dtype, ()):
        expected = "float32 (or uint8)" if info.dtype is DType.float32 else info.dtype.value
        raise ShapeError(f"{what}: expected {expected}, got {dtype}")
    fitted = _as_input(shape, info)
    sizes = zip(fitted[1:], info.shape[1:], strict=False)
    if len(fitted) != len(info.shape) or any(n != m for n, m in sizes if not isinstance(m, str)):
        advice = info.advice(shape)
        raise ShapeError(f"{what}: expected shape {show(info.shape)}, got {shape}{advice}")
    if fitted[0] == 0:
        raise ShapeError(f"{what}: expected at least one sample, got shape {shape}")


def fit_samples(array: Array, info: TensorInfo, what: str) -> tuple[Array, list[str]]:
    """Convert `array`, the samples in the file `what`, for the input `info`; return the result, and
    notes on scaling.

    Grey images may lack their channel, images are flattened for an input of (N, features), and
    for one of float32 bytes are scaled to 0..1 and float64 is rounded. Raises ShapeError for
    samples that do not fit.
    """
    check_samples(array.shape, array.dtype, info, what)
    notes: list[str] = []
    if array.dtype == np.uint8 and info.dtype is DType.float32:
        array = array.astype(np.float32)
        array /= np.float32(255)
        notes.append(f"{what}: bytes scaled to 0..1")
    if array.dtype == np.float64 and info.dtype is DType.float32:
        array = to_float32(what, array)
    array = array.reshape(_as_input(array.shape, info))
    return np.ascontiguousarray(info.array(array)), notes


def _as_input(shape: Shape, info: TensorInfo) -> Shape:
    """Return the shape of samples as the input has them: with a channel, or flattened."""
    sizes = info.shape
    if len(sizes) == 4 and sizes[1] == 1 and len(shape) == 3:
        return (shape[0], 1, *shape[1:])
    if len(sizes) == 2 and len(shape) > 2 and prod(shape[1:]) == sizes[1]:
        return (shape[0], prod(shape[1:]))
    return shape
