"""Pools of images: their gradient, and subsampling with a coefficient for each channel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from glnn.core.types import Array, Shape
from glnn.errors import ShapeError
from glnn.graph.gathering import FEW, Gathering, for_shapes
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Reference, Shapes, Types, rank, shrink_size
from glnn.graph.operators import windows
from glnn.graph.operators.windows import Pair, Sides

MODES = ("max", "average")
MOST_PADDING = 255  # of images that are smaller: beyond it there is nothing but time to be lost


@dataclass(frozen=True)
class Pool2d(HandwrittenOperator):
    """The greatest element (NaN, if there is one) or the mean of each window, by PyTorch's rules.

    x: (n, c, h, w). Result: (n, c, oh, ow). padding: at the top, left, bottom and right; never the
    maximum, and counted by the mean only if `count_include_pad`. With `ceil_mode` the last window
    may hang over the end. dilation: for "max", and for an average with a divisor, what that divides
    by instead of how many numbers it is of. With a `kernel` of None, `output` windows, None for x's
    own size, share the image: the i-th of m has the rows from floor(i h / m) up to
    ceil((i + 1) h / m), and columns likewise; `stride` and `ceil_mode` then change nothing.
    """

    name: ClassVar[str] = "pool2d"
    any_sizes: ClassVar[bool] = True
    samples: ClassVar[bool] = True
    nan_operands: ClassVar[tuple[str, ...]] = ("x",)
    mode: str = "max"
    kernel: Pair | None = (2, 2)
    stride: Pair = (2, 2)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor: int | None = None
    output: tuple[int | None, int | None] = (1, 1)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ShapeError(f"pool2d: mode must be max or average, got {self.mode!r}")
        windows.check(
            self.name,
            **({} if self.kernel is None else {"kernel": (self.kernel, 2, 1)}),
            stride=(self.stride, 2, 1),
            padding=(self.padding, 4, 0),
            dilation=(self.dilation, 2, 1),
            divisor=((1 if self.divisor is None else self.divisor,), 1, 1),
            output=(tuple(1 if size is None else size for size in self.output), 2, 1),
        )
        if self.divisor is not None and (self.mode == "max" or self.kernel is None):
            raise ShapeError("pool2d: only an average of windows of one size takes a divisor")
        if self.kernel is None:
            if any(self.padding) or self.dilation != (1, 1):
                raise ShapeError(
                    "pool2d: a window that spans the image takes no padding and no dilation, "
                    f"got {self.padding} and {self.dilation}"
                )
        elif any(2 * p > k for p, k in zip(self.padding, 2 * self.kernel, strict=True)):
            raise ShapeError(
                f"pool2d: padding must be at most half the kernel {self.kernel}, got {self.padding}"
            )
        if self.mode == "average" and self.dilation != (1, 1) and self.divisor is None:
            raise ShapeError(
                f"pool2d: an average takes no dilation without a divisor, got {self.dilation}"
            )

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 4, "(n, c, h, w)")
        n, c, h, w = shapes["x"]
        if self.kernel is None:
            return n, c, *self._shared_kernel((h, w))
        kernel = self.kernel
        oh, ow = windows.outputs(
            (h, w), kernel, self.stride, self.padding, self.dilation, self.ceil_mode
        )
        if any(count < 1 for count in (oh, ow, *kernel)):
            raise ShapeError(f"pool2d: the window {kernel} is larger than x {shapes['x']}")
        sides = zip(self.padding, (h, w, h, w), strict=True)
        if any(p > MOST_PADDING and p > n for p, n in sides):
            raise ShapeError(
                f"pool2d: padding must be at most {MOST_PADDING} or x's height and width "
                f"{(h, w)}, got {self.padding}"
            )
        return n, c, oh, ow

    def shrink(self, shapes: Shapes) -> Shapes:
        n, c, *size = shapes["x"]
        if self.kernel is not None:
            size = [*windows.shrink_sizes(size, self.shape_of(shapes)[2:], self.stride)]
        return {"x": (n, shrink_size(c), *size)}

    def _shared_kernel(self, size: Pair) -> Pair:
        """Return the number of windows that share an image of `size`, down and across."""
        down, across = (
            n if count is None else count for n, count in zip(size, self.output, strict=True)
        )
        if any(count < 1 for count in size):
            raise ShapeError(f"pool2d: the window {size} is larger than x, which is empty")
        counts = down * (size[0] + 1), across * (size[1] + 1), down * across
        if any(count > windows.MOST for count in counts):
            raise ShapeError(
                f"pool2d: {down} x {across} windows of an image of {size[0]} x {size[1]} are more "
                "than shaders count"
            )
        return down, across

    def _window(self, shapes: Shapes) -> Pair:
        """The height and width of the largest window."""
        if self.kernel is not None:
            return self.kernel
        h, w = shapes["x"][2:]
        down, across = self._shared_kernel((h, w))
        return _largest(h, down), _largest(w, across)

    def reach(self, shapes: Shapes) -> Pair:
        """The part of a window that may meet the padded image: no more of it is looked at."""
        (top, left, bottom, right), (h, w) = self.padding, shapes["x"][2:]
        height, width = self._window(shapes)
        return (
            min(height, (top + h + bottom - 1) // self.dilation[0] + 1),
            min(width, (left + w + right - 1) // self.dilation[1] + 1),
        )

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        shape = self.shape_of({"x": x.shape})
        if self.kernel is None:
            return self._compute_shared(x, (shape[2], shape[3]))
        down, across = self.reach({"x": x.shape})
        result = self._join_windows(self._join_windows(x, 0, shape[2], down), 1, shape[3], across)
        if self.mode == "average":
            result /= self.divisors(x, shape)
        return result

    def specialize(self, types: Types) -> Reference:
        # Sums are of another order than the reference's: after one run all are.
        if self.kernel is not None:
            return for_shapes(self.reference, self._looked_up, 1)
        if self.mode == "average" and self.output == (1, 1):
            return for_shapes(self.reference, self._whole_mean, 1)
        return self.reference

    def _whole_mean(self, x: Array) -> Reference | None:
        """Return what computes the means of images like `x` as a product of BLAS."""
        if x.dtype.kind != "f":
            return None
        shape, count = (*x.shape[:2], 1, 1), prod(x.shape[2:])
        ones, divisor = np.ones(count, x.dtype), np.asarray(count, x.dtype)
        rows = prod(x.shape[:2]), count
        return lambda x: ((np.matmul(x.reshape(rows), ones) / divisor).reshape(shape),)

    def _looked_up(self, x: Array) -> Reference | None:
        """Return what pools arrays like `x`, where they are of few numbers."""
        shape, reach = self.shape_of({"x": x.shape}), self.reach({"x": x.shape})
        taps = prod(reach)
        if not 0 < taps * prod(shape) <= FEW:
            return None
        places = np.arange(1, prod(x.shape) + 1, dtype=np.int64).reshape(x.shape)
        met = np.zeros((taps, *shape), np.int64)
        out, dilation = (shape[2], shape[3]), self.dilation
        every = windows.every_tap(places, out, reach, self.stride, self.padding, dilation)
        for tap, (_, (ys, xs), part) in enumerate(every):
            met[tap][:, :, ys, xs] = part
        join, none = (np.maximum, -np.inf) if self.mode == "max" else (np.add, 0)
        gather = Gathering(x.shape, met - 1, x.dtype, none)
        if self.mode == "max":
            return lambda x: (join.reduce(gather(x), 0),)
        divisors = self.divisors(x, shape)
        return lambda x: (join.reduce(gather(x), 0) / divisors,)

    def _join_windows(self, x: Array, axis: int, count: int, kernel: int) -> Array:
        """The maximum or the sum of each of `count` windows along one axis of the images."""
        join, none = (np.maximum, -np.inf) if self.mode == "max" else (np.add, 0)
        result = np.empty((*x.shape[: 2 + axis], count, *x.shape[3 + axis :]), x.dtype)
        source, joined = np.moveaxis(x, 2 + axis, 0), np.moveaxis(result, 2 + axis, 0)
        firsts = (tap * self.dilation[axis] - self.padding[axis] for tap in range(kernel))
        taps = [windows.rows(len(source), count, one, self.stride[axis]) for one in firsts]
        whole = [i for i, (made, _) in enumerate(taps) if made == slice(0, count)]
        if whole:
            np.copyto(joined, source[taps.pop(whole[0])[1]])
        else:
            joined[...] = none
        for made, met in taps:
            join(joined[made], source[met], out=joined[made])
        return result

    def divisors(self, x: Array, shape: Shape) -> Array:
        """Return the divisor of each window's sum for the mean: (oh, ow), or one number.

        shape: of the result for `x`; the pool has a kernel.
        """
        if self.divisor is not None:
            return np.asarray(self.divisor, x.dtype)
        return np.outer(self._counts(0, x, shape), self._counts(1, x, shape))

    def _compute_shared(self, x: Array, out: Pair) -> Array:
        """Compute the pool where windows share the image (adaptive pooling)."""
        joined = np.max if self.mode == "max" else np.mean
        result = np.empty((*x.shape[:2], *out), x.dtype)
        for i in range(out[0]):
            rows = x[:, :, shared_part(x.shape[2], i, out[0])]
            for j in range(out[1]):
                window = rows[..., shared_part(x.shape[3], j, out[1])]
                result[..., i, j] = joined(window, axis=(2, 3))
        return result

    def _counts(self, axis: int, x: Array, shape: Shape) -> Array:
        """Return the number of places along an axis that each window's mean is over."""
        size, before, after = x.shape[2 + axis], self.padding[axis], self.padding[2 + axis]
        first = np.arange(shape[2 + axis]) * self.stride[axis] - before
        last = first + self.reach({"x": x.shape})[axis]
        if self.count_include_pad:
            return np.asarray((np.minimum(last, size + after) - first).astype(x.dtype))
        return np.asarray((np.minimum(last, size) - np.maximum(first, 0)).astype(x.dtype))

    def depth(self, shapes: Shapes) -> int:
        return prod(self._window(shapes)) if self.kernel is None else 1

    def flops(self, shapes: Shapes) -> int:
        return prod(self.shape_of(shapes)) * prod(self.reach(shapes))

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, oh, ow = self.shape_of(shapes)
        return {"n": n, "c": c, "h": shapes["x"][2], "w": shapes["x"][3], "oh": oh, "ow": ow}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        top, left, bottom, right = self.padding
        height, width = self.reach(shapes) if self.kernel else (1, 1)  # shaders know the image's
        return {
            "MODE": MODES.index(self.mode),
            "WHOLE": int(self.kernel is None and self.output == (1, 1)),
            "SHARED": int(self.kernel is None and self.output != (1, 1)),
            "KERNEL_H": height,
            "KERNEL_W": width,
            "STRIDE_H": self.stride[0],
            "STRIDE_W": self.stride[1],
            "PADDING_TOP": top,
            "PADDING_LEFT": left,
            "PADDING_BOTTOM": bottom,
            "PADDING_RIGHT": right,
            "DILATION_H": self.dilation[0],
            "DILATION_W": self.dilation[1],
            "COUNT_INCLUDE_PAD": int(self.count_include_pad),
            "DIVIDED": int(self.divisor is not None),
        }

    def scalars(self) -> dict[str, float]:
        return {} if self.divisor is None else {"divisor": float(self.divisor)}


def shared_part(size: int, index: int, count: int) -> slice:
    """Return the slice of `size` places for window number `index` of the `count` that share
    them.
    """
    return slice(index * size // count, -(-(index + 1) * size // count))


def _largest(size: int, count: int) -> int:
    """Places of the largest of `count` windows that share `size`, at the most."""
    return min(size, -(-size // count) + (size % count > 0))


LEVELS = 4  # of the numbers that maxima are tried with, so that some of them are equal


@dataclass(frozen=True)
class Pool2dGradient(HandwrittenOperator):
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
        if (got := {name: shapes[name] for name in ("x", "y") if name in shapes}) != expected:
            raise ShapeError(
                f"{self.name}: of a pool by {self.pool.mode} there must be {expected}, got {got}"
            )
        return pooled

    def compute(self, operands: Mapping[str, Array]) -> Array:
        dy = operands["dy"]
        shape = self.shape_of({name: array.shape for name, array in operands.items()})
        result = np.zeros(shape, dy.dtype)
        windowed = [
            operands[name].astype(dy.dtype, copy=False) for name in ("x", "y") if name in operands
        ]
        if self.pool.kernel is None:
            self._add_shared(result, dy, *windowed)
        elif windowed:
            self._add_to_greatest(result, dy, *windowed)
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
            target, share = result[:, :, rows, columns], dy[:, :, i, j, None, None]
            if x is None or y is None:
                target += share / dy.dtype.type(prod(target.shape[2:]))
                continue
            window = x[:, :, rows, columns].reshape(*x.shape[:2], -1)
            greatest = y[:, :, i, j, None]
            equal, nan = window == greatest, np.isnan(window) & np.isnan(greatest)
            last = window.shape[2] - 1 - np.argmax(nan[..., ::-1], -1)
            chosen = np.where(nan.any(-1), last, np.argmax(equal, -1))[..., None]
            places = (np.arange(window.shape[2]) == chosen) & (equal | nan)
            target += np.where(places.reshape(target.shape), share, 0)

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


@dataclass(frozen=True)
class Subsample(HandwrittenOperator):
    """weight mean + bias, the mean being that of each window of an image.

    x: (n, c, h, w). weight, bias: (c,), of each channel. Result: (n, c, h / kh, w / kw), rounded
    down: windows lie side by side. LeCun et al. 1998, Gradient-Based Learning Applied to Document
    Recognition, section II.B (there a sum), in the form of Rovder 2019 (a mean).
    """

    has_epilogue: ClassVar[bool] = True
    name: ClassVar[str] = "subsample"
    samples: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("weight", "bias")
    kernel: Pair = (2, 2)

    def __post_init__(self) -> None:
        windows.check(self.name, kernel=(self.kernel, 2, 1))

    def shape_of(self, shapes: Shapes) -> Shape:
        rank(self.name, "x", shapes["x"], 4, "(n, c, h, w)")
        n, c, h, w = shapes["x"]
        self.check_shapes_of(shapes, dict.fromkeys(self.parameters, (c,)))
        oh, ow = h // self.kernel[0], w // self.kernel[1]
        if oh < 1 or ow < 1:
            raise ShapeError(f"subsample: the window {self.kernel} is larger than x {shapes['x']}")
        return n, c, oh, ow

    def compute(self, operands: Mapping[str, Array]) -> Array:
        x = operands["x"]
        n, c, oh, ow = self.shape_of({name: array.shape for name, array in operands.items()})
        kh, kw = self.kernel
        inside = x[:, :, : oh * kh, : ow * kw]
        means = inside.reshape(n, c, oh, kh, ow, kw).mean(axis=(3, 5))
        weight, bias = (
            operands[name].astype(x.dtype, copy=False).reshape(1, c, 1, 1)
            for name in self.parameters
        )
        return np.asarray(means * weight + bias)

    def flops(self, shapes: Shapes) -> int:
        return prod(self.shape_of(shapes)) * (prod(self.kernel) + 2)

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        n, c, oh, ow = self.shape_of(shapes)
        return {"n": n, "c": c, "h": shapes["x"][2], "w": shapes["x"][3], "oh": oh, "ow": ow}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {"KERNEL_H": self.kernel[0], "KERNEL_W": self.kernel[1]}
