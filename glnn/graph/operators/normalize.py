"""Layer, group, instance and RMS normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.blockwise import runs
from glnn.graph.contraction import Contraction
from glnn.graph.operator import Shapes, shrink_size
from glnn.symint import divides
from glnn.types import Array, Shape


@dataclass(frozen=True)
class Normalize(Contraction):
    """(x - mean) / sqrt(variance + eps) * weight + bias, all float32.

    With `dims`, over the last so many dimensions of x, of whose shape weight and bias are: layer
    normalisation (Ba et al. 2016, section 3), or, not `centred`, RMS normalisation, which takes
    the mean of squares for the variance and no mean away (Zhang and Sennrich 2019, section 3). With
    `groups`, over each of so many groups of the channels of x (n, c, ...), weight and bias having
    shape (c,): group normalisation (Wu and He 2018, section 3.1); 0 groups are as many as channels,
    instance normalisation. The variance is that of the population.
    """

    name: ClassVar[str] = "normalize"
    optional: ClassVar[tuple[str, ...]] = ("weight", "bias")
    parameters: ClassVar[tuple[str, ...]] = ("weight", "bias")
    samples: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    dims: int | None = None
    """Number of trailing dimensions that are normalised together; or `groups`."""
    groups: int | None = None
    """Number of groups that channels are divided into."""
    centred: bool = True
    """True where the mean is subtracted."""
    eps: float = 1e-5
    """Number that is added to the variance."""

    def __post_init__(self) -> None:
        if (self.dims is None) == (self.groups is None):
            raise ShapeError("normalize: it has either dims or groups")
        least, value = (1, self.dims) if self.groups is None else (0, self.groups)
        if type(value) is not int or value < least:
            raise ShapeError(
                f"normalize: dims must be an integer of at least 1, groups one of at least 0, "
                f"got {value!r}"
            )
        if not 0 <= self.eps < float("inf"):
            raise ShapeError(f"normalize: eps must be a number of at least 0, got {self.eps!r}")

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        wanted = self._parameter_shape(x)
        for name in self.parameters:
            if shapes.get(name, wanted) != wanted:
                raise ShapeError(f"normalize: {name} must have shape {wanted}, got {shapes[name]}")
        return x

    def _parameter_shape(self, x: Shape) -> Shape:
        """The shape of weight and bias. Raises ShapeError where x does not fit."""
        if self.dims is not None:
            if self.dims > len(x):
                raise ShapeError(f"normalize: x of shape {x} has no {self.dims} dimensions")
            return x[-self.dims :]
        if len(x) < 2:
            raise ShapeError(f"normalize: x must have shape (n, c, ...), got {x}")
        if self.groups and x[1] % self.groups:
            raise ShapeError(f"normalize: {x[1]} channels are not {self.groups} groups")
        return (x[1],)

    def grouped(self, x: Shape) -> Shape:
        """The shape of `x` as (n, groups, numbers of a group), or as (rows, numbers of a row)."""
        if self.dims is not None:
            split = len(x) - self.dims
            return prod(x[:split]), prod(x[split:])
        groups = self.groups or x[1]
        return x[0], groups, x[1] // max(groups, 1) * prod(x[2:])

    def spread(self, x: Shape) -> Shape:
        """The shape in which weight and bias broadcast to x."""
        return x[-self.dims :] if self.dims is not None else (x[1], *(1,) * (len(x) - 2))

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        self.shape_of({name: array.shape for name, array in operands.items()})
        outer, *groups = self.grouped(x.shape)
        inner = x.shape[-self.dims :] if self.dims is not None else x.shape[1:]
        spread, result = self.spread(x.shape), np.empty(x.shape, x.dtype)
        given, made = x.reshape(outer, *groups), result.reshape(outer, *inner)
        with np.errstate(all="ignore"):
            for part in runs(outer, prod(inner)):
                rows = given[part].astype(np.float64)  # long sums of like numbers
                if self.centred:
                    rows -= rows.mean(axis=-1, keepdims=True)
                rows /= np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + self.eps)
                rows = rows.reshape(-1, *inner)
                if "weight" in operands:
                    rows *= operands["weight"].reshape(spread)
                if "bias" in operands:
                    rows += operands["bias"].reshape(spread)
                made[part] = rows
        return result

    def flops(self, shapes: Shapes) -> int:
        return 8 * prod(shapes["x"])  # mean, distances, squares, their mean, quotients, parameters

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        """Return the operands that hold samples: none where samples are normalised together."""
        return () if self.dims == len(shapes["x"]) else ("x",)

    def shrink(self, shapes: Shapes) -> Shapes:
        if self.dims is None:
            return shapes
        x, split = shapes["x"], len(shapes["x"]) - self.dims
        return {**shapes, "x": (*map(shrink_size, x[:split]), *x[split:])}

    def depth(self, shapes: Shapes) -> int:
        return self.grouped(shapes["x"])[-1]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        x = shapes["x"]
        *rows, extent = self.grouped(x)
        per_sample = prod(x[1:]) if len(x) > 1 else prod(x)
        return {
            "rows": prod(rows),
            "extent": extent,
            "sample_rows": max(per_sample // max(extent, 1), 1),
            "row_groups": rows[-1] if self.dims is None else 1,
            "channels": x[1] // max(rows[-1], 1) if self.dims is None else 1,
            "spatial": prod(x[2:]) if self.dims is None else 1,
        }

    def derived(self, shapes: Shapes) -> dict[str, int]:
        """Return "wide", 1 where rows are whole vec4s, and "in_rows", 1 where no padding divides a
        row.
        """
        x, extent = shapes["x"], self.sizes(shapes)["extent"]
        dims = self.dims or 1
        padded = dims > 1 and not divides(4, extent // max(x[-dims], 1))
        return {"wide": int(divides(4, extent)), "in_rows": int(not padded)}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"CENTRED": int(self.centred), "GROUPED": int(self.dims is None)}

    def scalars(self) -> dict[str, float]:
        return {"eps": self.eps}
