"""What each op should give, by its definition: float64, loops over indices, nothing clever.

Independent of glnn on purpose: the expected values of the tests come from here.
"""

from __future__ import annotations

from math import ceil, exp, floor, isnan, nan, sqrt, tanh
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _activate(function: str, value: float) -> float:
    if isnan(value):
        return nan
    if function == "sigmoid":
        return 1 / (1 + exp(-value)) if value > -700 else 0.0
    if function == "relu":
        return max(value, 0.0)
    return tanh(value) if function == "tanh" else value


def activation(x: Array, function: str) -> Array:
    return np.array([_activate(function, float(v)) for v in x.flat]).reshape(x.shape)


def matmul(
    a: Array,
    b: Array,
    bias: Array | None = None,
    c: Array | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    function: str = "identity",
) -> Array:
    """act(alpha a b^T + bias + beta c); the sums over k of a row are left to NumPy's float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    out = np.zeros((len(a), len(b)))
    for i in range(len(a)):
        value = alpha * np.sum(a[i] * b, axis=1)
        value += bias if bias is not None else 0.0
        value += beta * c[i].astype(np.float64) if c is not None else 0.0
        out[i] = value
    return activation(out, function) if function != "identity" else out


def conv2d(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    function: str = "identity",
) -> Array:
    top, left, bottom, right = padding
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, _, h, w = padded.shape
    o, share, kh, kw = weight.shape
    oh = (h - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (w - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    out = np.zeros((n, o, oh, ow))
    kernels = weight.astype(np.float64).reshape(groups, o // groups, share, kh, kw)
    for group, kernel in enumerate(kernels):
        first, channels = group * share, slice(group * len(kernel), (group + 1) * len(kernel))
        for y in range(oh):
            for z in range(ow):
                y0, z0 = y * stride[0], z * stride[1]
                patch = padded[
                    :,
                    first : first + share,
                    y0 : y0 + dilation[0] * (kh - 1) + 1 : dilation[0],
                    z0 : z0 + dilation[1] * (kw - 1) + 1 : dilation[1],
                ]
                out[:, channels, y, z] = np.einsum("nihw,oihw->no", patch, kernel)
    out += 0 if bias is None else bias[:, None, None]
    return activation(out, function) if function != "identity" else out


def pad2d(x: Array, padding: tuple[int, int, int, int]) -> Array:
    top, left, bottom, right = padding
    return np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))


def im2row(
    x: Array,
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Array:
    """A row for each window, a column for each tap and channel, the channels innermost."""
    padded = pad2d(x, padding)
    h, w = padded.shape[2:]
    tops = range(0, h - dilation[0] * (kernel[0] - 1), stride[0])
    lefts = range(0, w - dilation[1] * (kernel[1] - 1), stride[1])
    rows = []
    for image in padded:
        for top in tops:
            for left in lefts:
                row: list[float] = []
                for i in range(kernel[0]):
                    for j in range(kernel[1]):
                        row += list(image[:, top + i * dilation[0], left + j * dilation[1]])
                rows.append(row)
    return np.array(rows)


_R, _S = sqrt(0.5), sqrt(2)
# B^T, G and A^T of Winograd's F(m, 3), by m, worked out by hand: at the points 0, 1 and -1, and at
# 0, +-sqrt(1/2) and +-sqrt(2); infinity is the last of both.
WINOGRAD: dict[int, tuple[Array, Array, Array]] = {
    2: (
        np.array([[-1, 0, 1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]], np.float64),
        np.array([[-1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
        np.array([[1, 1, 1, 0], [0, 1, -1, 1]], np.float64),
    ),
    4: (
        np.array(
            [
                [1, 0, -2.5, 0, 1, 0],
                [0, -_S, -2, _R, 1, 0],
                [0, _S, -2, -_R, 1, 0],
                [0, -_R, -0.5, _S, 1, 0],
                [0, _R, -0.5, -_S, 1, 0],
                [0, 1, 0, -2.5, 0, 1],
            ]
        ),
        np.array(
            [
                [1, 0, 0],
                [-2 / 3, -2 / 3 * _R, -1 / 3],
                [-2 / 3, 2 / 3 * _R, -1 / 3],
                [1 / 6, _S / 6, 1 / 3],
                [1 / 6, -_S / 6, 1 / 3],
                [0, 0, 1],
            ]
        ),
        np.array(
            [
                [1, 1, 1, 1, 1, 0],
                [0, _R, -_R, _S, -_S, 0],
                [0, 0.5, 0.5, 2, 2, 0],
                [0, _R / 2, -_R / 2, 2 * _S, -2 * _S, 1],
            ]
        ),
    ),
}


def winograd_input(x: Array, tile: int, padding: tuple[int, int, int, int]) -> Array:
    """B^T d B of the patches of x: a matrix of tiles by channels for each place in a patch."""
    padded = pad2d(x, padding)
    n, c, h, w = padded.shape
    down, across = -(-(h - 2) // tile), -(-(w - 2) // tile)
    whole = np.zeros((n, c, down * tile + 2, across * tile + 2))
    whole[:, :, :h, :w] = padded
    out = np.zeros((tile + 2, tile + 2, n, down, across, c))
    data = WINOGRAD[tile][0]
    for image, y, z, channel in np.ndindex(n, down, across, c):
        top, left = y * tile, z * tile
        patch = whole[image, channel, top : top + tile + 2, left : left + tile + 2]
        out[:, :, image, y, z, channel] = data @ patch @ data.T
    return out.reshape(-1, c)


def winograd_output(x: Array, images: tuple[int, int, int], tile: int) -> Array:
    """A^T m A of every tile m of the products, which lie as `winograd_input` stacks them."""
    n, oh, ow = images
    o, down, across = x.shape[1], -(-oh // tile), -(-ow // tile)
    tiles = x.astype(np.float64).reshape(tile + 2, tile + 2, n, down, across, o)
    out = np.zeros((n, o, down * tile, across * tile))
    back = WINOGRAD[tile][2]
    for image, y, z, channel in np.ndindex(n, down, across, o):
        result = back @ tiles[:, :, image, y, z, channel] @ back.T
        out[image, channel, y * tile : (y + 1) * tile, z * tile : (z + 1) * tile] = result
    return out[:, :, :oh, :ow]


def adaptive_pool2d(x: Array, mode: str, output: tuple[int | None, int | None]) -> Array:
    """By the formulae of PyTorch's AdaptivePooling.h: start_index and end_index."""
    oh, ow = (n if count is None else count for n, count in zip(x.shape[2:], output, strict=True))
    out = np.zeros((*x.shape[:2], oh, ow))
    for i, j in np.ndindex(oh, ow):
        rows = slice(floor(i * x.shape[2] / oh), ceil((i + 1) * x.shape[2] / oh))
        columns = slice(floor(j * x.shape[3] / ow), ceil((j + 1) * x.shape[3] / ow))
        window = x[:, :, rows, columns].astype(np.float64)
        out[:, :, i, j] = (np.max if mode == "max" else np.mean)(window, axis=(2, 3))
    return out


def pool2d(
    x: Array,
    mode: str,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Array:
    """By the text of PyTorch's documentation of MaxPool2d and AvgPool2d."""
    n, channels, h, w = x.shape
    top, left, bottom, right = padding

    def windows(size: int, before: int, after: int, k: int, s: int, d: int) -> list[int]:
        starts = []
        start = -before
        while True:
            end = start + d * (k - 1)
            inside = end < size + after
            if not inside and not (ceil_mode and start < size and end - s < size + after - 1):
                return starts
            starts.append(start)
            start += s

    ys = windows(h, top, bottom, kernel[0], stride[0], dilation[0])
    xs = windows(w, left, right, kernel[1], stride[1], dilation[1])
    out = np.zeros((n, channels, len(ys), len(xs)))
    for i, y in enumerate(ys):
        for j, z in enumerate(xs):
            rows = [y + dilation[0] * t for t in range(kernel[0])]
            columns = [z + dilation[1] * t for t in range(kernel[1])]
            inside = [(r, c) for r in rows for c in columns if 0 <= r < h and 0 <= c < w]
            values = np.array([x[:, :, r, c] for r, c in inside], np.float64)
            if mode == "max":
                out[:, :, i, j] = values.max(axis=0) if len(values) else -np.inf
            else:
                padded = [(r, c) for r in rows for c in columns if r < h + bottom and c < w + right]
                count = len(padded) if count_include_pad else len(inside)
                out[:, :, i, j] = values.sum(axis=0) / count
    return out


def bias(x: Array, values: Array) -> Array:
    out = x.astype(np.float64)
    for channel in range(x.shape[1]):
        out[:, channel] += float(values[channel])
    return out


def softmax(x: Array, axis: int) -> Array:
    rows = np.moveaxis(x.astype(np.float64), axis, -1)
    out = np.zeros(rows.shape)
    for index in np.ndindex(*rows.shape[:-1]):
        greatest = max(rows[index])
        powers = [exp(v - greatest) for v in rows[index]]
        out[index] = [p / sum(powers) for p in powers]
    return np.moveaxis(out, -1, axis)


def subsample(
    x: Array, weight: Array, bias: Array, kernel: tuple[int, int], function: str = "identity"
) -> Array:
    """By the text of LeCun 1998, a mean instead of a sum."""
    n, channels, h, w = x.shape
    out = np.zeros((n, channels, h // kernel[0], w // kernel[1]))
    for image, channel, y, z in np.ndindex(*out.shape):
        total = 0.0
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                total += float(x[image, channel, y * kernel[0] + i, z * kernel[1] + j])
        mean = total / (kernel[0] * kernel[1])
        value = float(weight[channel]) * mean + float(bias[channel])
        out[image, channel, y, z] = _activate(function, value)
    return out


def batch_norm(
    x: Array, weight: Array, bias: Array, mean: Array, variance: Array, eps: float
) -> Array:
    """By the formula in PyTorch's documentation of BatchNorm2d, in evaluation mode."""
    out = np.zeros(x.shape)
    for channel in range(x.shape[1]):
        centred = x[:, channel].astype(np.float64) - float(mean[channel])
        normal = centred / sqrt(float(variance[channel]) + eps)
        out[:, channel] = normal * float(weight[channel]) + float(bias[channel])
    return out


def local_response_norm(x: Array, size: int, alpha: float, beta: float, k: float) -> Array:
    """As PyTorch computes it: squares are padded with zero channels, then averaged over `size`."""
    squares = x.astype(np.float64) ** 2
    before, after = size // 2, (size - 1) // 2
    padded = np.pad(squares, [(0, 0), (before, after)] + [(0, 0)] * (x.ndim - 2))
    out = np.zeros(x.shape)
    for channel in range(x.shape[1]):
        mean = padded[:, channel : channel + size].sum(axis=1) / size
        out[:, channel] = x[:, channel] / (k + alpha * mean) ** beta
    return out


def concat(*arrays: Array) -> Array:
    n, _, *rest = arrays[0].shape
    out = np.zeros((n, sum(a.shape[1] for a in arrays), *rest))
    place = 0
    for array in arrays:
        for channel in range(array.shape[1]):
            out[:, place] = array[:, channel]
            place += 1
    return out


def error(got: Array, expected: Array, terms: Array | None = None) -> float:
    """Relative Frobenius error; NaN and infinities must be in the same places.

    terms: for each result, the sum of |term|; errors are relative to its norm, as results may
    nearly cancel.
    """
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    assert got.shape == expected.shape, f"{got.shape} instead of {expected.shape}"
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, expected))
    norm = float(np.linalg.norm((expected if terms is None else terms)[finite]))
    distance = float(np.linalg.norm(got[finite] - expected[finite]))
    return distance / norm if norm else distance
