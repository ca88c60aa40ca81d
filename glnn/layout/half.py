"""Half precision: two numbers of any other layout in the place of one float."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.layout.layout import Dim, Layout

Array = NDArray[Any]
SUFFIX = " f16"


@dataclass(frozen=True)
class Half(Layout):
    """The layout `inner`, its numbers rounded to half precision (IEEE 754 binary16).

    Numbers beyond 65504 become infinite. Sizes count floats, of which each holds two halves.
    """

    inner: Layout

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name + SUFFIX

    @property
    def ranks(self) -> tuple[int, ...] | None:
        return self.inner.ranks

    def at(self, shape: tuple[int, ...]) -> Layout:
        return Half(self.inner.at(shape))

    def size(self, shape: tuple[int, ...]) -> int:
        return -(-self.inner.size(shape) // 2)

    def dims(self, shape: tuple[int, ...]) -> tuple[Dim, ...]:
        return self.inner.dims(shape)

    def pack(self, array: Array) -> Array:
        halves = np.zeros(2 * self.size(array.shape), np.float16)
        with np.errstate(over="ignore"):
            halves[: self.inner.size(array.shape)] = self.inner.pack(array)
        return halves.view(np.float32)

    def unpack(self, flat: Array, shape: tuple[int, ...]) -> Array:
        halves = np.ascontiguousarray(flat, np.float32).view(np.float16)
        return self.inner.unpack(halves[: self.inner.size(shape)].astype(np.float32), shape)
