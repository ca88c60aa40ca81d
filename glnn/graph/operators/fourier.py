"""Discrete Fourier transforms of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Shapes, rank

Kind = Literal["real", "complex", "inverse", "real inverse"]
KINDS = get_args(Kind)


@dataclass(frozen=True)
class Fourier(HandwrittenOperator):
    """The first `bins` numbers of the Fourier transform of each row of `size` numbers.

    x: (rows, terms), real numbers where `kind` is "real", else each with its imaginary part behind
    it. factors: (columns, terms), as `factors` has them, by which kernels multiply; NumPy's FFT
    does not need them. Result: (rows, columns). The inverse is of complex numbers, divided by
    `size`; the real one is of the first half of them, (size // 2 + 1), and has no imaginary parts.
    """

    name: ClassVar[str] = "fourier"
    parameters: ClassVar[tuple[str, ...]] = ("factors",)
    samples: ClassVar[bool] = True
    kind: Kind
    size: int
    bins: int
    """Numbers of the result, each with its imaginary part behind it, if it has one."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not 1 <= self.bins <= self.size:
            raise ShapeError(
                f"fourier: kind must be one of {', '.join(KINDS)} and bins from 1 to {self.size}, "
                f"got {self.kind!r} and {self.bins}"
            )

    @property
    def terms(self) -> int:
        """Numbers of a row of x."""
        if self.kind == "real inverse":
            return 2 * (self.size // 2 + 1)
        return self.size if self.kind == "real" else 2 * self.size

    @property
    def columns(self) -> int:
        """Numbers of a row of the result."""
        return self.bins if self.kind == "real inverse" else 2 * self.bins

    def factors(self) -> Array:
        """Return the factors of the transform, (columns, terms) float32."""
        identity = np.identity(self.terms, np.float64)
        return np.ascontiguousarray(self._transform(identity).T, np.float32)

    def shape_of(self, shapes: Shapes) -> Shape:
        x, factors = shapes["x"], shapes["factors"]
        rank("fourier", "x", x, 2, f"(rows, {self.terms})")
        if x[1] != self.terms or factors != (self.columns, self.terms):
            raise ShapeError(
                f"fourier: x must be (rows, {self.terms}) and factors ({self.columns}, "
                f"{self.terms}), got {x} and {factors}"
            )
        return (x[0], self.columns)

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        with np.errstate(all="ignore"):
            return np.asarray(self._transform(x.astype(np.float64)), x.dtype)

    def _transform(self, x: Array) -> Array:
        """Return the transform of rows of float64."""
        if self.kind == "real":
            transform = np.fft.fft if self.bins > self.size // 2 + 1 else np.fft.rfft
            return _parts(transform(x, axis=1)[:, : self.bins])
        numbers = x[:, ::2] + 1j * x[:, 1::2]
        if self.kind == "real inverse":
            return np.fft.irfft(numbers, self.size, 1)[:, : self.bins]
        transform = np.fft.ifft if self.kind == "inverse" else np.fft.fft
        return _parts(transform(numbers, axis=1)[:, : self.bins])

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        """Return the factors of the transform, which no others are, and `numbers` as x."""
        return self.factors() if name == "factors" else numbers

    def multiply_adds(self, shapes: Shapes) -> int:
        return int(shapes["x"][0] * self.terms * self.columns)

    def flops(self, shapes: Shapes) -> int:
        return 2 * self.multiply_adds(shapes)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        return {"m": shapes["x"][0], "n": self.columns, "k": self.terms}

    def depth(self, shapes: Shapes) -> int:
        return self.terms


def _parts(numbers: Array) -> Array:
    """Return complex rows as real ones, the imaginary part behind each real one."""
    return np.ascontiguousarray(numbers).view(np.float64)
