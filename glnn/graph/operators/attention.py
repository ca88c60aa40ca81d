"""Attention: values weighted by the softmax of products of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from math import isfinite, prod
from typing import ClassVar

import numpy as np

from glnn.core.symint import divides, same
from glnn.core.types import Array, Shape
from glnn.errors import ShapeError, shown
from glnn.graph.handwritten_operator import HandwrittenOperator
from glnn.graph.operator import Cost, Operands, Shapes, typed

TOKENS_FIRST = (0, 2, 1)
"""Order of a result's samples 0, heads 1 and queries 2 with contiguous heads of a token."""


@dataclass(frozen=True)
class StridedView:
    """Offset and strides of an operand in its row-major memory, counted in numbers.

    Number i of token t of head h of sample s is at start + s sample + h head + t token + i step.
    """

    start: int = 0
    """Offset of the first number."""
    sample: int = 0
    """Stride between samples; 0 where all have the same numbers."""
    head: int = 0
    """Stride between heads; 0 where all have the same numbers."""
    token: int = 0
    """Stride between tokens; of a mask, between queries."""
    step: int = 1
    """Stride between the numbers of a token; of a mask, between keys."""

    def last(self, *sizes: int) -> int:
        """Return the offset of the last number of so many samples, heads, tokens and numbers."""
        steps = (self.sample, self.head, self.token, self.step)
        return self.start + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))

    def count(self, *sizes: int) -> int:
        """Return how many distinct elements so many samples, heads, tokens and numbers are."""
        steps = (self.sample, self.head, self.token, self.step)
        return prod(n for n, step in zip(sizes, steps, strict=True) if not same(step, 0))

    def apply(self, x: Array, *sizes: int) -> Array:
        """Return x as (samples, heads, tokens, numbers), a read-only view."""
        flat = np.ascontiguousarray(x).reshape(-1)[self.start :]
        steps = (self.sample, self.head, self.token, self.step)
        strides = tuple(flat.itemsize * step for step in steps)
        return np.lib.stride_tricks.as_strided(flat, sizes, strides, writeable=False)


@dataclass(frozen=True)
class Windows:
    """Windows that divide an image; tokens attend to the tokens of their window (Liu et al. 2021).

    Images are rows of tokens. Windows and their tokens are row major. The first window begins at
    (`down`, `right`); windows wrap around at the edges, as of an image that is rolled back by so
    much.
    """

    rows: int
    """Number of windows below one another."""
    columns: int
    """Number of windows beside one another."""
    height: int
    """Number of tokens of a window below one another."""
    width: int
    """Number of tokens of a window beside one another."""
    down: int = 0
    """Row of the image that the first window begins at."""
    right: int = 0
    """Column of the image that the first window begins at."""

    def __post_init__(self) -> None:
        if min(self.rows, self.columns, self.height, self.width) < 1:
            raise ShapeError(f"windows: sizes must be 1 or more, got {self}")
        high, wide = self.rows * self.height, self.columns * self.width
        if not (0 <= self.down < high and 0 <= self.right < wide):
            raise ShapeError(f"windows: the first must begin within {high} x {wide}, got {self}")

    @property
    def count(self) -> int:
        """Number of windows of an image."""
        return self.rows * self.columns

    @property
    def tokens(self) -> int:
        """Number of tokens of a window."""
        return self.height * self.width

    def places(self) -> Array:
        """Return the index in the image of each token of each window, (count, tokens)."""
        high, wide = self.rows * self.height, self.columns * self.width
        image = np.arange(high * wide).reshape(high, wide)
        image = np.roll(image, (-self.down, -self.right), (0, 1))
        cut = image.reshape(self.rows, self.height, self.columns, self.width)
        return np.asarray(cut.swapaxes(1, 2).reshape(self.count, self.tokens))


@dataclass(frozen=True)
class Attention(HandwrittenOperator):
    """softmax(scale Q K^T + mask) V for each head of each sample (Vaswani et al. 2017, 3.2.1).

    q, k, v and mask: any shapes, float32, read by the strides of `views`, so that heads need no
    transposition: Q is (batch, heads, queries, width), K (batch, heads, keys, width), V (batch,
    heads, keys, columns), the mask (batch, heads, queries, keys). Result: batch, heads and queries
    in the order `order`, each a dimension, and then columns. A row of scores with NaN, with
    infinity or of nothing but minus infinity gives NaN altogether, or zeros. With `windows` a
    sample is a window of an image: the views of q, k and v, and the result, are of images.
    """

    name: ClassVar[str] = "attention"
    inputs: ClassVar[tuple[str, ...]] = ("q", "k", "v", "mask")
    optional: ClassVar[tuple[str, ...]] = ("mask",)
    nan_operands: ClassVar[tuple[str, ...]] = ("q", "k")
    batch: int
    """Number of samples."""
    heads: int
    queries: int
    keys: int
    width: int
    """Length of a query and of a key."""
    columns: int
    """Length of a value."""
    views: tuple[StridedView, ...]
    """Offsets and strides of q, k, v and, where there is one, the mask."""
    scale: float = 1.0
    order: tuple[int, int, int] = TOKENS_FIRST
    """Order of batch 0, heads 1 and queries 2 in the result."""
    zeros: bool = False
    """True where rows without a softmax are zeros, not NaN."""
    masks: int = 0
    """Number of samples that have masks of their own, those behind having the same again; 0 where
    all have."""
    windows: Windows | None = None
    """Windows of images that samples are; None where each sample lies by itself."""

    def __post_init__(self) -> None:
        sizes = (self.batch, self.heads, self.queries, self.keys, self.width, self.columns)
        if any(n < 1 for n in sizes):
            raise ShapeError(f"attention: sizes must be 1 or more, got {sizes}")
        if self.order not in permutations(range(3)):
            raise ShapeError(f"attention: order must be that of 0, 1, 2, got {shown(self.order)}")
        if len(self.views) not in (3, 4) or any(view.step != 1 for view in self.views[:3]):
            raise ShapeError(
                "attention: views must be of q, k, v and perhaps a mask, and of steps of 1"
            )
        if not isfinite(self.scale):
            raise ShapeError(f"attention: scale must be finite, got {self.scale}")
        if self.masks and (len(self.views) < 4 or not divides(self.masks, self.batch)):
            raise ShapeError(
                f"attention: the masks' number must divide the samples', got {self.masks} masks of "
                f"{self.batch} samples"
            )
        windows = self.windows
        if windows is None:
            return
        if not same((self.queries, self.keys), (windows.tokens,) * 2):
            tokens = self.queries, self.keys
            raise ShapeError(f"attention: {windows} have other tokens than {tokens}")
        if not divides(windows.count, self.batch):
            raise ShapeError(f"attention: {self.batch} samples are no images of {windows}")

    @property
    def counts(self) -> tuple[int, int, int]:
        """Number of samples, heads and queries of each that the result has."""
        if self.windows is None:
            return self.batch, self.heads, self.queries
        count = self.windows.count
        return self.batch // count, self.heads, count * self.queries

    @property
    def spans(self) -> dict[str, tuple[StridedView, Shape]]:
        """The view of each operand and the shape that it reads: (batch, heads, tokens, numbers)."""
        samples, heads, queries = self.counts
        keys = self.keys if self.windows is None else queries
        sizes = {
            "q": (samples, heads, queries, self.width),
            "k": (samples, heads, keys, self.width),
            "v": (samples, heads, keys, self.columns),
            "mask": (self.masks or self.batch, heads, self.queries, self.keys),
        }
        return {
            name: (view, sizes[name]) for name, view in zip(self.inputs, self.views, strict=False)
        }

    def shape_of(self, shapes: Shapes) -> Shape:
        if set(shapes) != set(self.spans):
            raise ShapeError(f"attention: expected {list(self.spans)}, got {list(shapes)}")
        for name, (view, sizes) in self.spans.items():
            ends = view.start, view.last(*sizes)
            steps = view.sample, view.head, view.token, view.step
            if any(place < 0 for place in (*ends, *steps)):
                raise ShapeError(f"attention: {name} must have strides of 0 or more, got {view}")
            if ends[1] >= prod(shapes[name]):
                raise ShapeError(f"attention: {name} {shapes[name]} ends before {view} of {sizes}")
        return (*(self.counts[i] for i in self.order), self.columns)

    def compute(self, operands: Mapping[str, Array]) -> Array:
        scores, values = self._scores_and_values(operands)
        # inf - inf is NaN, as it should be; a difference may overflow to -inf, whose exp is 0.
        with np.errstate(invalid="ignore", over="ignore"):
            most = scores.max(axis=-1, keepdims=True)
            exps = np.exp(scores - most)
            weights = exps / exps.sum(axis=-1, keepdims=True, dtype=np.float64)
            attended = weights.astype(exps.dtype) @ values
            sound = np.isfinite(most)
            attended = np.where(sound, attended, attended.dtype.type(0 if self.zeros else np.nan))
        if self.windows is not None:
            attended = _joined(attended, self.windows.places())
        return np.ascontiguousarray(attended.transpose(*self.order, 3))

    def _scores_and_values(self, operands: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return the masked scores (batch, heads, queries, keys), and the values (batch, heads,
        keys, columns).
        """
        self.shape_of({name: array.shape for name, array in operands.items()})
        arrays = {n: view.apply(operands[n], *sizes) for n, (view, sizes) in self.spans.items()}
        if self.windows is not None:
            places = self.windows.places()
            arrays |= {name: _cut(arrays[name], places) for name in "qkv"}
        q, k, v = (arrays[name] for name in "qkv")
        with np.errstate(invalid="ignore", over="ignore"):
            scores = (q @ k.swapaxes(2, 3)) * q.dtype.type(self.scale)
            if "mask" in arrays:
                scores = _with_mask(scores, arrays["mask"])
        return scores, v

    def multiply_adds(self, shapes: Shapes) -> int:
        return self._scores * (self.width + self.columns)

    def flops(self, shapes: Shapes) -> int:
        # Two products; scale, mask, maximum, difference, exponential, sum.
        return 2 * self.multiply_adds(shapes) + 6 * self._scores

    def cost_of(self, operands: Operands) -> Cost:
        """Return the least work and traffic: q, k and v may be views of one tensor, read once."""
        types = typed(operands)
        shapes = {name: one.shape for name, one in types.items()}
        read = sum(
            types[name].dtype.words(view.count(*sizes))
            for name, (view, sizes) in self.spans.items()
        )
        return Cost(self.flops(shapes), 4 * (read + prod(self.shape_of(shapes))))

    @property
    def _scores(self) -> int:
        return self.batch * self.heads * self.queries * self.keys

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        result = {"batch": self.batch, "heads": self.heads, "queries": self.queries}
        result |= {"keys": self.keys, "width": self.width, "columns": self.columns}
        for name, (view, _) in self.spans.items():
            result |= {f"{name}_start": view.start, f"{name}_sample": view.sample}
            result |= {f"{name}_head": view.head, f"{name}_token": view.token}
        if len(self.views) == 4:
            result["mask_step"] = self.views[3].step
            result["masks"] = self.masks or self.batch
        stride = self.columns
        for i in reversed(self.order):
            result[("out_sample", "out_head", "out_token")[i]] = stride
            stride *= self.counts[i]
        if self.windows is not None:
            result |= {f"window_{name}": size for name, size in vars(self.windows).items()}
        return result

    def derived_sizes(self, shapes: Shapes) -> dict[str, int]:
        """Return "wide", 1 where q, k, v and the result are whole vec4s, and "tokens_first", 1
        where the result is in the order sample, query, head, except for dimensions of 1.
        """
        strides = [(w.start, w.sample, w.head, w.token) for w in self.views[:3]]
        numbers = (self.width, self.columns, *(n for view in strides for n in view))
        several = [i for i in self.order if not same(self.counts[i], 1)]
        tokens_first = several == sorted(several, key=TOKENS_FIRST.index)
        return {
            "wide": int(all(divides(4, n) for n in numbers)),
            "tokens_first": int(tokens_first),
        }

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {
            "ZEROS": int(self.zeros),
            "WINDOWED": int(self.windows is not None),
            "PARTIAL": 0,
        }

    def scalars(self) -> dict[str, float]:
        return {"scale": self.scale}

    def depth(self, shapes: Shapes) -> int:
        return self.keys


@dataclass(frozen=True)
class PartialAttention(Attention):
    """`Attention` to each of `parts` ranges of the keys; AttentionSum reduces these.

    Result: (batch queries, heads parts (columns + 4)). Each part has the sum of the values times
    their weights exp(score - maximum), the maximum, the sum of the weights, a 1 and a 0. A part
    without keys, or whose keys are all masked, has the least float for the maximum, and zeros; for
    scores with infinity or NaN the maximum is infinity, and the sum NaN.
    """

    name: ClassVar[str] = "partial_attention"
    parts: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts < 1:
            raise ShapeError(f"partial_attention: parts must be 1 or more, got {self.parts}")
        if self.windows is not None or self.order != TOKENS_FIRST:
            raise ShapeError(
                f"partial_attention: expected results by sample, query and head and no windows, "
                f"got order {self.order} and {self.windows}"
            )

    @property
    def part_keys(self) -> int:
        """The keys of a part; the last parts may have fewer, or none."""
        return -(-self.keys // self.parts)

    def shape_of(self, shapes: Shapes) -> Shape:
        super().shape_of(shapes)
        return self.batch * self.queries, self.heads * self.parts * (self.columns + 4)

    def compute(self, operands: Mapping[str, Array]) -> Array:
        scores, values = self._scores_and_values(operands)
        shape = self.batch, self.queries, self.heads, self.parts, self.columns + 4
        result = np.zeros(shape, scores.dtype)
        least = scores.dtype.type(np.finfo(np.float32).min)
        for part in range(self.parts):
            keys = slice(part * self.part_keys, (part + 1) * self.part_keys)
            part_scores = scores[..., keys]
            with np.errstate(invalid="ignore", over="ignore"):
                most = part_scores.max(-1, keepdims=True, initial=least)
                sound = most < np.inf  # neither infinite nor NaN
                most = np.where(sound, most, np.inf)
                exps = np.where(sound, np.exp(part_scores - most), np.nan)
                sums = np.concatenate(
                    (exps @ values[:, :, keys], most, exps.sum(-1, keepdims=True)), -1
                )
            result[:, :, :, part, :-2] = sums.swapaxes(1, 2)
        result[..., -2] = 1
        return result.reshape(self.shape_of({n: one.shape for n, one in operands.items()}))

    def sizes(self, shapes: Shapes) -> dict[str, int]:
        part = self.columns + 4
        head = self.parts * part
        token = self.heads * head
        strides = {"out_part": part, "out_head": head, "out_token": token}
        strides |= {"out_sample": self.queries * token}
        counts = {"parts": self.parts, "part_keys": self.part_keys}
        return {**super().sizes(shapes), **strides, **counts}

    def defines(self, shapes: Shapes) -> dict[str, int]:
        return {**super().defines(shapes), "PARTIAL": 1}

    def depth(self, shapes: Shapes) -> int:
        return self.part_keys


def _cut(images: Array, places: Array) -> Array:
    """Return windows (samples, heads, tokens, numbers) of images (n, heads, tokens, numbers).

    places: the index in its image of each token of each window.
    """
    windows = images[:, :, places]  # (images, heads, windows, tokens, numbers)
    return np.swapaxes(windows, 1, 2).reshape(-1, *windows.shape[1:2], *windows.shape[3:])


def _joined(windows: Array, places: Array) -> Array:
    """Return the images of windows: the inverse of `_cut`."""
    _, heads, tokens, numbers = windows.shape
    count = len(places)
    by_image = windows.reshape(-1, count, heads, tokens, numbers).swapaxes(1, 2)
    result = np.empty((len(by_image), heads, count * tokens, numbers), windows.dtype)
    result[:, :, places] = by_image
    return result


def _with_mask(scores: Array, mask: Array) -> Array:
    """Return scores (samples, heads, queries, keys) plus masks of as many samples or fewer, which
    are repeated.
    """
    return (scores.reshape(-1, *mask.shape) + mask).reshape(scores.shape)
