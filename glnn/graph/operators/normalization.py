"""Normalization: of rows, of channels near one another, and softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from glnn.core.symint import divides, same
from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.expression_evaluation import BLOCK_SIZE, runs
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Shapes, shrink_size
from glnn.graph.operators import windows
from glnn.graph.operators.reductions import axes_of, check_axes

LEAST_SQUARE = 1e-30  # the least mean of squares of which float32 loses no significant square


@dataclass(frozen=True)
class Normalize(HandwrittenOperator):
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
        self.check_shapes_of(shapes, dict.fromkeys(self.parameters, wanted))
        return x

    def _parameter_shape(self, x: Shape) -> Shape:
        """Return the shape of weight and bias. Raises ShapeError where x does not fit."""
        if self.dims is not None:
            if self.dims > len(x):
                raise ShapeError(f"normalize: x of shape {x} has no {self.dims} dimensions")
            return x[-self.dims :]
        if len(x) < 2:
            raise ShapeError(f"normalize: x must have shape (n, c, ...), got {x}")
        if self.groups and x[1] % self.groups:
            raise ShapeError(f"normalize: {x[1]} channels are not {self.groups} groups")
        return (x[1],)

    def grouped_shape(self, x: Shape) -> Shape:
        """Return `x` as the shape (n, groups, elements of a group) or (rows, elements of a row)."""
        if self.dims is not None:
            split = len(x) - self.dims
            return prod(x[:split]), prod(x[split:])
        groups = self.groups or x[1]
        return x[0], groups, x[1] // max(groups, 1) * prod(x[2:])

    def spread(self, x: Shape) -> Shape:
        """Return the shape in which weight and bias broadcast to x."""
        return x[-self.dims :] if self.dims is not None else (x[1], *(1,) * (len(x) - 2))

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        self.shape_of({name: array.shape for name, array in operands.items()})
        if x.dtype == np.float32 and x.size:
            return self._compute_float32(operands)
        return self._compute_exact(operands)

    def _compute_float32(self, operands: Mapping[str, Array]) -> Array:
        """Compute in float32 as exactly as in float64: the mean is subtracted twice, against its
        rounding, and sums are pairwise. In float64 where a mean of squares leaves float32's range.
        """
        x = operands["x"]
        *rows, extent = self.grouped_shape(x.shape)
        count, groups = prod(rows), rows[-1]
        channels = x.shape[1] // groups if self.dims is None else 1
        least = 0 if self.eps >= LEAST_SQUARE else LEAST_SQUARE
        result = np.empty((count, extent), np.float32)
        numbers = np.ascontiguousarray(x).reshape(count, extent)
        scratch = np.empty((max(BLOCK_SIZE // extent, 1), extent), np.float32)
        with np.errstate(all="ignore"):
            for part in runs(count, extent):
                normalized, rows_x = result[part], numbers[part]
                if self.centred:
                    np.subtract(rows_x, rows_x.mean(axis=1, keepdims=True), out=normalized)
                    mean = normalized.mean(axis=1, keepdims=True)
                    rows_x = np.subtract(normalized, mean, out=normalized)
                squares = np.square(rows_x, out=scratch[: len(rows_x)])
                mean = squares.mean(axis=1, keepdims=True)
                if not ((mean >= least) & (mean < np.inf)).all():
                    return self._compute_exact(operands)
                np.multiply(rows_x, 1 / np.sqrt(mean + np.float32(self.eps)), out=normalized)
                if self.dims is not None:
                    self._scale_and_shift(normalized, operands, (1, extent), slice(None))
                    continue
                group_indices = np.arange(*part.indices(count)) % groups
                normalized = normalized.reshape(len(normalized), channels, -1)
                self._scale_and_shift(normalized, operands, (groups, channels, 1), group_indices)
        return result.reshape(x.shape)

    def _scale_and_shift(
        self, rows: Array, operands: Mapping[str, Array], shape: Shape, part: Any
    ) -> None:
        """Multiply `rows` by the weight and add the bias, in place.

        shape: the shape of the weight and the bias. part: the indices of these for `rows`.
        """
        for name, function in (("weight", np.multiply), ("bias", np.add)):
            if name in operands:
                function(rows, operands[name].reshape(shape)[part], out=rows)

    def _compute_exact(self, operands: Mapping[str, Array]) -> Array:
        """Compute in float64."""
        x = operands["x"]
        outer, *groups = self.grouped_shape(x.shape)
        inner = x.shape[-self.dims :] if self.dims is not None else x.shape[1:]
        spread, result = self.spread(x.shape), np.empty(x.shape, x.dtype)
        grouped, normalized = x.reshape(outer, *groups), result.reshape(outer, *inner)
        with np.errstate(all="ignore"):
            for part in runs(outer, prod(inner)):
                rows = grouped[part].astype(np.float64)  # long sums of like numbers
                if self.centred:
                    rows -= rows.mean(axis=-1, keepdims=True)
                rows /= np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + self.eps)
                rows = rows.reshape(-1, *inner)
                if "weight" in operands:
                    rows *= operands["weight"].reshape(spread)
                if "bias" in operands:
                    rows += operands["bias"].reshape(spread)
                normalized[part] = rows
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
        return self.grouped_shape(shapes["x"])[-1]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        x = shapes["x"]
        *rows, extent = self.grouped_shape(x)
        per_sample = prod(x[1:]) if len(x) > 1 else prod(x)
        return {
            "rows": prod(rows),
            "extent": extent,
            "sample_rows": max(per_sample // max(extent, 1), 1),
            "row_groups": rows[-1] if self.dims is None else 1,
            "channels": x[1] // max(rows[-1], 1) if self.dims is None else 1,
            "spatial": prod(x[2:]) if self.dims is None else 1,
        }

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
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


class _RowSizes:
    """Sizes of operators of matrices x (rows, n), which compute row by row."""

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][1]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        rows, extent = shapes["x"]
        return {"rows": rows, "extent": extent, "sample_rows": 1}

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return "wide", 1 where rows are whole vec4s."""
        return {"wide": int(divides(4, shapes["x"][1]))}


@dataclass(frozen=True)
class NormalizeGradient(_RowSizes, HandwrittenOperator):
    """The gradient of a normalisation of rows by its input.

    x: (rows, n), the input. dy: of its shape, the gradient by the result. weight: (n,), the factor
    of normalised rows; 1 without it. With g = dy weight, and y for the normalised rows, the result
    is (g - mean(g) - y mean(g y)) / deviation, without mean(g) where the rows are not `centred`.
    Ioffe and Szegedy 2015, Batch Normalization, section 3, of the rows' own statistics.
    """

    name: ClassVar[str] = "normalize_gradient"
    has_epilogue: ClassVar[bool] = True
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x")
    optional: ClassVar[tuple[str, ...]] = ("weight",)
    parameters: ClassVar[tuple[str, ...]] = ("weight",)
    samples: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = ("dy", "x")
    centred: bool = True
    """True where the mean of a row is subtracted."""
    eps: float = 1e-5
    """Number that is added to the variance."""

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if len(x) != 2:
            raise ShapeError(f"normalize_gradient: x must have shape (rows, n), got {x}")
        self.check_shapes_of(shapes, {"dy": x, "weight": x[1:]})
        return x

    def compute(self, operands: Mapping[str, Array]) -> Array:
        dy, x = operands["dy"], operands["x"]
        count, extent = self.shape_of({name: array.shape for name, array in operands.items()})
        result = np.empty(x.shape, x.dtype)
        with np.errstate(all="ignore"):
            for part in runs(count, extent) if x.size else ():
                rows, g = x[part].astype(np.float64), dy[part].astype(np.float64)
                if "weight" in operands:
                    g *= operands["weight"]
                if self.centred:
                    rows -= rows.mean(axis=1, keepdims=True)
                scale = 1 / np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + self.eps)
                rows *= scale
                rows *= (g * rows).mean(axis=1, keepdims=True)
                if self.centred:
                    g -= g.mean(axis=1, keepdims=True)
                result[part] = (g - rows) * scale
        return result

    def flops(self, shapes: Shapes) -> int:
        return 14 * prod(shapes["x"])  # statistics 6, products and their means 4, the result 4

    def shrink(self, shapes: Shapes) -> Shapes:
        rows, extent = shapes["x"]
        smaller = shrink_size(rows), extent
        return {name: one if name == "weight" else smaller for name, one in shapes.items()}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"CENTRED": int(self.centred)}

    def scalars(self) -> dict[str, float]:
        return {"eps": self.eps}


@dataclass(frozen=True)
class Softmax(HandwrittenOperator):
    """exp(x) over its sum along `axis`, or the logarithm of that. x: any shape but (), float32.

    A row with NaN, with infinity or of nothing but minus infinity is NaN altogether.
    """

    name: ClassVar[str] = "softmax"
    samples: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    axis: int = -1
    """Axis of the softmax; negative ones count from the end."""
    log: bool = False
    """True where the logarithm is wanted."""

    def __post_init__(self) -> None:
        check_axes("softmax", (self.axis,))

    def shape_of(self, shapes: Shapes) -> Shape:
        axes_of("softmax", (self.axis,), len(shapes["x"]))
        return shapes["x"]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        self.shape_of({"x": x.shape})
        if x.size == 0:
            return np.array(x)
        axis, result = self.axis % x.ndim, np.empty(x.shape, x.dtype)
        view = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
        x_view, result_view = x.reshape(view), result.reshape(view)
        # inf - inf is NaN, as it should be; the exponential of a difference that overflows is 0.
        with np.errstate(invalid="ignore", over="ignore"):
            for part in runs(view[0], view[1] * view[2]):
                rows, out = x_view[part], result_view[part]
                np.subtract(rows, rows.max(axis=1, keepdims=True), out=out)
                exps = np.exp(out, out=None if self.log else out)
                # NumPy adds up pairs of sums of neighbours, but other axes one number at a time.
                dtype = x.dtype if view[2] == 1 else np.float64
                total = exps.sum(axis=1, keepdims=True, dtype=dtype)
                if self.log:
                    np.subtract(out, np.log(total).astype(x.dtype), out=out)
                else:
                    np.divide(exps, total.astype(x.dtype), out=out)
        return result

    def flops(self, shapes: Shapes) -> int:
        return 5 * prod(shapes["x"])  # maximum, difference, exponential, sum, quotient

    def sample_operands(self, shapes: Shapes) -> tuple[str, ...]:
        """Return the operands that hold samples: none where the axis is the samples'."""
        x = shapes["x"]
        return ("x",) if axes_of("softmax", (self.axis,), len(x)) != (0,) else ()

    def depth(self, shapes: Shapes) -> int:
        return shapes["x"][self.axis]

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        x = shapes["x"]
        (axis,) = axes_of("softmax", (self.axis,), len(x))
        extent, inner = x[axis], prod(x[axis + 1 :])
        per_sample = prod(x[1:]) if len(x) > 1 else prod(x)
        return {
            "rows": prod(x[:axis]),
            "extent": extent,
            "sample_rows": per_sample // max(extent, 1),
        } | {"inner": inner}

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        sizes = self.sizes(shapes)
        return {"in_rows": int(same(sizes["inner"], 1)), "wide": int(divides(4, sizes["extent"]))}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"LOG": int(self.log)}


@dataclass(frozen=True)
class SoftmaxGradient(_RowSizes, HandwrittenOperator):
    """The gradient of a softmax of rows by its input: x (dy - sum(dy x)).

    x: (rows, n), the softmax. dy: of its shape, the gradient by it. Where dy is 0 nothing is added
    to the sum, and where dy equals the sum the gradient is 0, even for an x of NaN: a row that is
    masked entirely, which is NaN, has the gradient 0 where nothing depends on it.
    """

    name: ClassVar[str] = "softmax_gradient"
    has_epilogue: ClassVar[bool] = True
    inputs: ClassVar[tuple[str, ...]] = ("dy", "x")
    samples: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = ("dy",)

    def shape_of(self, shapes: Shapes) -> Shape:
        x = shapes["x"]
        if len(x) != 2:
            raise ShapeError(f"softmax_gradient: x must have shape (rows, n), got {x}")
        self.check_shapes_of(shapes, {"dy": x})
        return x

    def compute(self, operands: Mapping[str, Array]) -> Array:
        dy, x = operands["dy"], operands["x"]
        count, extent = self.shape_of({name: array.shape for name, array in operands.items()})
        result = np.empty(x.shape, x.dtype)
        with np.errstate(all="ignore"):
            for part in runs(count, extent) if x.size else ():
                g, row = dy[part], x[part]
                products = np.where(g == 0, 0, g * row)
                total = products.sum(axis=1, keepdims=True, dtype=np.float64).astype(x.dtype)
                result[part] = np.where(g == total, 0, row * (g - total))
        return result

    def flops(self, shapes: Shapes) -> int:
        return 4 * prod(shapes["x"])

    def shrink(self, shapes: Shapes) -> Shapes:
        rows, extent = shapes["x"]
        return dict.fromkeys(shapes, (shrink_size(rows), extent))


@dataclass(frozen=True)
class LocalResponseNorm(HandwrittenOperator):
    """x / (k + alpha / size s) ** beta, s being the sum of the squares of `size` channels.

    They are size // 2 channels before x's own, itself, and (size - 1) // 2 behind it, as far as
    there are such. x: (n, c, ...). Krizhevsky et al. 2012, ImageNet Classification with Deep
    Convolutional Neural Networks, section 3.3, with alpha as PyTorch takes it.
    """

    name: ClassVar[str] = "local_response_norm"
    samples: ClassVar[bool] = True
    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def __post_init__(self) -> None:
        windows.check(self.name, size=((self.size,), 1, 1))
        for name in ("alpha", "beta", "k"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise ShapeError(
                    f"local_response_norm: {name} must be a number of at least 0, got {value!r}"
                )

    def shape_of(self, shapes: Shapes) -> Shape:
        if len(shapes["x"]) < 2:
            raise ShapeError(
                f"local_response_norm: x must have shape (n, c, ...), got {shapes['x']}"
            )
        return shapes["x"]

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        channels = self.shape_of({"x": x.shape})[1]
        sums = np.zeros_like(x)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            squares = x * x
            size = self._reach(channels)
            for offset in range(-(size // 2), (size - 1) // 2 + 1):
                first, last = max(0, -offset), min(channels, channels - offset)
                if first < last:
                    sums[:, first:last] += squares[:, first + offset : last + offset]
            return np.asarray(x / (self.k + self.alpha / self.size * sums) ** self.beta)

    def _reach(self, channels: int) -> int:
        """A size of the same result, in which there are no neighbours that x never has."""
        return min(self.size, max(1, 2 * channels - 1))

    def flops(self, shapes: Shapes) -> int:
        size = self._reach(shapes["x"][1])
        return prod(shapes["x"]) * (2 * size + 4)  # and scaled, added to, its power, divided

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, *inner = self.shape_of(shapes)
        return {"n": n, "c": c, "inner": prod(inner)}

    def scalars(self) -> dict[str, float]:
        return {"alpha": self.alpha / self.size, "beta": float(self.beta), "k": float(self.k)}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"SIZE": self._reach(shapes["x"][1])}
