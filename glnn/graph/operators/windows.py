"""The geometry that convolution and pooling share: where windows lie on a padded image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glnn.core.types import Array
from glnn.errors import ShapeError
from glnn.graph import operator

Pair = tuple[int, int]
Sides = tuple[int, int, int, int]  # top, left, bottom, right
MOST = 2**31 - 1  # what a shader's int holds


def check(op: str, **attributes: tuple[tuple[int, ...], int, int]) -> None:
    """Raise ShapeError unless each attribute, (values, how many, the least), is as it should be."""
    for name, (values, count, least) in attributes.items():
        fits = isinstance(values, tuple) and len(values) == count
        if not fits or any(not isinstance(v, int) or not least <= v <= MOST for v in values):
            raise ShapeError(
                f"{op}: {name} must be {count} integers of at least {least} and at most {MOST}, "
                f"got {values}"
            )


def output(
    size: int, before: int, after: int, kernel: int, stride: int, dilation: int, ceil: bool = False
) -> int:
    """Return the number of windows along a dimension of `size`; with `ceil` the last may hang over
    its end.

    As in PyTorch, a window must start inside the image or the padding before it.
    """
    room = size + before + after - dilation * (kernel - 1) - 1
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= size + before:
        count -= 1
    return count


def outputs(
    size: Pair, kernel: Pair, stride: Pair, padding: Sides, dilation: Pair, ceil: bool = False
) -> Pair:
    """Return the number of windows down and across an image of `size`.

    Raises ShapeError where the padded image or the windows are more than an int32 counts.
    """
    (top, left, bottom, right), (h, w) = padding, size
    down = output(h, top, bottom, kernel[0], stride[0], dilation[0], ceil)
    across = output(w, left, right, kernel[1], stride[1], dilation[1], ceil)
    padded = h + top + bottom > MOST or w + left + right > MOST
    if padded or (down > 0 and across > 0 and down * across > MOST):
        raise ShapeError(
            f"an image of {h} x {w} padded by {padding} has {down} x {across} windows: it and they "
            f"must be at most {MOST}"
        )
    return down, across


def rows(size: int, count: int, first: int, stride: int) -> tuple[slice, slice]:
    """Return the windows, of `count`, whose tap is inside the image, and the places of these taps.

    first: the place of the first window's tap, negative in the padding.
    """
    low = max(0, -(first // stride)) if first < 0 else 0
    high = min(count, (size - 1 - first) // stride + 1) if size - 1 >= first else 0
    if high <= low:
        return slice(0, 0), slice(0, 0)
    start = first + low * stride
    return slice(low, high), slice(start, start + (high - low - 1) * stride + 1, stride)


def shrink_sizes(size: Sequence[int], out: Sequence[int], stride: Pair) -> tuple[int, ...]:
    """Return the size of an image with fewer windows than `out`, where these are many."""
    along = zip(size, out, stride, strict=True)
    return tuple(n - (count - operator.shrink_size(count)) * step for n, count, step in along)


def taps(x: Array, at: Pair, out: Pair, stride: Pair) -> tuple[tuple[slice, slice], Array]:
    """The results that one tap of the window reaches, and the elements of x that it meets there.

    x: (n, c, h, w). at: the tap's place for the first window. out: windows along h and w.
    """
    ys, xs_y = rows(x.shape[2], out[0], at[0], stride[0])
    xs, xs_x = rows(x.shape[3], out[1], at[1], stride[1])
    return (ys, xs), x[:, :, xs_y, xs_x]


def every_tap(
    x: Array, out: Pair, kernel: Pair, stride: Pair, padding: Sides, dilation: Pair
) -> Iterator[tuple[Pair, tuple[slice, slice], Array]]:
    """Yield each tap of the window: its place in it, and the result of `taps` for it."""
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            at = ky * dilation[0] - padding[0], kx * dilation[1] - padding[1]
            yield (ky, kx), *taps(x, at, out, stride)


def defines(kernel: Pair, stride: Pair, padding: Sides, dilation: Pair) -> dict[str, int]:
    """Return the shader macros of a convolution's window (common/window.glsl)."""
    return {
        "KERNEL_H": kernel[0],
        "KERNEL_W": kernel[1],
        "STRIDE_H": stride[0],
        "STRIDE_W": stride[1],
        "PADDING_TOP": padding[0],
        "PADDING_LEFT": padding[1],
        "DILATION_H": dilation[0],
        "DILATION_W": dilation[1],
    }
