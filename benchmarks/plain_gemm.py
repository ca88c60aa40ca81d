"""Convolutions on the CPU by im2row and plain loops, in the three orders of Cronin 2018."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.compiled import library

Array = NDArray[np.float32]
SOURCE = Path(__file__).with_name("plain_gemm.c")
ORDERS = ("ab_ik", "abt_ik", "abt_ki")
"""a, b: the factors, t: b is stored transposed; ik: patches by kernels, ki: kernels by patches."""


def ways(x: Array, weight: Array) -> Iterator[tuple[str, Callable[[], Array]]]:
    """Each order, and what convolves x (1, c, h, w) by weight (o, c, k, k) with padding k / 2.

    The kernel matrix is made once, the patch matrix in every run. k is odd. A result is (1, o, h,
    w); it may be a view. Raises GlnnError where there is no C compiler.
    """
    (_, c, h, w), (o, _, k, _) = x.shape, weight.shape
    compiled = library(SOURCE)
    rows = np.ascontiguousarray(weight.transpose(0, 2, 3, 1)).reshape(o, k * k * c)
    columns = np.ascontiguousarray(rows.T)
    image, patches = np.ascontiguousarray(x), np.empty((h * w, k * k * c), np.float32)

    def gather() -> None:
        compiled.im2row(_at(image), _at(patches), c, h, w, k, k // 2)

    def by_patches(name: str, kernels: Array) -> Array:
        gather()
        out: Array = np.empty((h * w, o), np.float32)
        compiled[name](_at(patches), _at(kernels), _at(out), h * w, o, k * k * c)
        result: Array = out.T.reshape(1, o, h, w)
        return result

    def by_kernels() -> Array:
        gather()
        out: Array = np.empty((o, h * w), np.float32)
        compiled.gemm_abt(_at(rows), _at(patches), _at(out), o, h * w, k * k * c)
        return out.reshape(1, o, h, w)

    made = (
        lambda: by_patches("gemm_ab", columns),
        lambda: by_patches("gemm_abt", rows),
        by_kernels,
    )
    yield from zip(ORDERS, made, strict=True)


def _at(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
