"""The gradient of a pool by what it pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.contraction import Contraction
from glnn.graph.operator import Shapes, rank
from glnn.graph.operators import windows
from glnn.graph.operators.pool2d import Pool2d, shared_part
from glnn.graph.operators.windows import Pair
from glnn.types import Array, Shape

LEVELS = 4  # of the numbers that maxima are tried with, so that some of them are equal


@dataclass(frozen=True)
class Pool2dGradient(Contraction):
    """The gradient of a pool by its x: the sum of dy over the windows that cover each place.

    dy: (n, c, oh, ow), the gradient by the pool's result. x, y: what was pooled, (n, c, h, w), and
    what came of it, (n, c, oh, ow): there for a maximum, and only there. Result: (n, c, h, w). Of
    an average each place of the window gets dy over the window's divisor. Of a maximum the first
    place of the window that has the number y gets dy, row by row; where y is NaN it is the last
    place that is NaN: those that PyTorch's indices name. An epilogue does the rest.
    """

    has_epilogue: ClassVar[bool] = True
    name: ClassVar[str] = "pool2d_gradient"
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x", "y")
    optional: ClassVar[tuple[str, ...]] = ("x", "y")
    samples: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = ("dy", "x", "y")
    compared_operands: ClassVar[tuple[str, ...]] = ("x", "y")
    pool: Pool2d
    """The pool."""
    size: Pair
    """The height and the width of what was pooled."""

    def __post_init__(self) -> None:
        windows.check(self.name, size=(self.size, 2, 1))

    def shape_of(self, shapes: Shapes) -> Shape:
        dy = shapes["dy"]
        rank(self.name, "dy", dy, 4, "(n, c, oh, ow)")
        pooled = (*dy[:2], *self.size)
        if (out := self.pool.shape_of({"x": pooled})) != dy:
            raise ShapeError(f"{self.name}: dy must have shape {out} for {pooled}, got {dy}")
        expected = {"x": pooled, "y": dy} if self.pool.mode == "max" else {}
        if (given := {name: shapes[name] for name in ("x", "y") if name in shapes}) != expected:
            raise ShapeError(
                f"{self.name}: of a pool by {self.pool.mode} there must be {expected}, got {given}"
            )
        return pooled

    def compute(self, operands: Mapping[str, Array]) -> Array:
        dy = operands["dy"]
        shape = self.shape_of({name: array.shape for name, array in operands.items()})
        result = np.zeros(shape, dy.dtype)
        given = [
            operands[name].astype(dy.dtype, copy=False) for name in ("x", "y") if name in operands
        ]
        if self.pool.kernel is None:
            self._add_shared(result, dy, *given)
        elif given:
            self._add_to_greatest(result, dy, *given)
        else:
            shares = dy / self.pool.divisors(result, dy.shape)
            for _, at, met in self._every_tap(result, dy.shape):
                met += shares[at]
        return result

    def _add_to_greatest(self, result: Array, dy: Array, x: Array, y: Array) -> None:
        """Add dy of windows of one size to `result`, each at the place of its maximum."""
        chosen = np.full(dy.shape, -1)
        for tap, at, met in self._every_tap(x, dy.shape):
            nan = np.isnan(met) & np.isnan(y[at])
            first = (met == y[at]) & (chosen[at] < 0)
            chosen[at] = np.where(nan | first, tap, chosen[at])
        for tap, at, met in self._every_tap(result, dy.shape):
            met += np.where(chosen[at] == tap, dy[at], 0)

    def _every_tap(
        self, x: Array, out: Shape
    ) -> Iterator[tuple[int, tuple[slice, slice, slice, slice], Array]]:
        """The number of each place of a window, row by row; the windows that have it on the image;
        and the part of `x` that they have there.
        """
        pool, whole = self.pool, slice(None)
        geometry = pool.reach({"x": x.shape}), pool.stride, pool.padding, pool.dilation
        for tap, (_, at, met) in enumerate(windows.every_tap(x, (out[2], out[3]), *geometry)):
            yield tap, (whole, whole, *at), met

    def _add_shared(
        self, result: Array, dy: Array, x: Array | None = None, y: Array | None = None
    ) -> None:
        """Add dy of windows that share the image (adaptive pooling) to `result`."""
        for i, j in np.ndindex(*dy.shape[2:]):
            rows = shared_part(result.shape[2], i, dy.shape[2])
            columns = shared_part(result.shape[3], j, dy.shape[3])
            own, given = result[:, :, rows, columns], dy[:, :, i, j, None, None]
            if x is None or y is None:
                own += given / dy.dtype.type(prod(own.shape[2:]))
                continue
            window = x[:, :, rows, columns].reshape(*x.shape[:2], -1)
            greatest = y[:, :, i, j, None]
            equal, nan = window == greatest, np.isnan(window) & np.isnan(greatest)
            last = window.shape[2] - 1 - np.argmax(nan[..., ::-1], -1)
            chosen = np.where(nan.any(-1), last, np.argmax(equal, -1))[..., None]
            places = (np.arange(window.shape[2]) == chosen) & (equal | nan)
            own += np.where(places.reshape(own.shape), given, 0)

    def flops(self, shapes: Shapes) -> int:
        """An operation for each place of each window."""
        pooled = {"x": self.shape_of(shapes)}
        return prod(shapes["dy"]) * prod(self.pool.reach(pooled))

    def trial(self, name: str, numbers: Array, shapes: Shapes) -> Array:
        """Return `numbers` of a few levels, so that some of x equal those of y."""
        if self.pool.mode == "average":
            return numbers
        return np.asarray(np.round(numbers * LEVELS) / LEVELS, numbers.dtype)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, oh, ow = shapes["dy"]
        return {"n": n, "c": c, "h": self.size[0], "w": self.size[1], "oh": oh, "ow": ow}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return self.pool.defines({"x": self.shape_of(shapes)})

    def scalars(self) -> dict[str, float]:
        return self.pool.scalars()
