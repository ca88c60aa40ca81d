"""NonMaxSuppression and RoiAlign by NumPy, with which detectors end, and TopK of other types than
glnn's operators have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from glnn.core.array_functions import suppress_overlaps
from glnn.core.process import check_memory
from glnn.core.types import Array
from glnn.errors import LimitError, ShapeError
from glnn.graph.operators.top_k import top_indices

Attributes = Mapping[str, Any]
MOST_GRID = 2**31 - 1  # places along an axis for each part of a region, as in ONNX Runtime
MOST_PLACES = 1 << 24  # places along an axis for all parts of a region that may be in the image
TABLE = 64  # bytes for each part of each region along an axis, with those of temporary arrays
BLOCK = 1 << 20  # numbers of a temporary array, as far as regions can be divided


def top_k(attributes: Attributes, version: int, x: Array, k: Array | None = None) -> list[Array]:
    """Return the `k` greatest or least numbers along an axis and their places, int64.

    Of equal ones the first; NaN is the greatest number, as in NumPy and PyTorch. They are in order
    whether that is asked for or not.
    """
    count = attributes["k"] if k is None else int(_number("TopK", k, "k"))
    axis = attributes.get("axis", -1)
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"TopK: axis must be from {-x.ndim} to {x.ndim - 1}, got {axis}")
    n = x.shape[axis]
    if not 0 <= count <= n:
        raise ShapeError(f"TopK: k must be from 0 to {n} along axis {axis}, got {count}")
    rows = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    indices = np.moveaxis(top_indices(rows, count, bool(attributes.get("largest", 1))), -1, axis)
    return [np.take_along_axis(x, indices, axis), indices]


def non_max_suppression(
    attributes: Attributes,
    version: int,
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    overlap: Array | None = None,
    least: Array | None = None,
) -> list[Array]:
    """Return (n, 3) of int64: sample, class and box of those that no better one overlaps.

    boxes: (samples, count, 4). scores: (samples, classes, count). most: boxes of a class, none
    unless said. overlap: intersection over union beyond which the lesser box goes, 0 unless said.
    least: the score that must be exceeded. Of equal scores the first is the better.
    """
    if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.ndim != 3:
        raise ShapeError(f"NonMaxSuppression: boxes {boxes.shape} and scores {scores.shape}")
    if (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2]):
        raise ShapeError(f"NonMaxSuppression: boxes {boxes.shape} and scores {scores.shape}")
    count = (
        0 if most is None else int(_number("NonMaxSuppression", most, "max_output_boxes_per_class"))
    )
    limit = np.float32(
        0 if overlap is None else _number("NonMaxSuppression", overlap, "iou_threshold")
    )
    if not 0 <= limit <= 1:
        raise ShapeError(f"NonMaxSuppression: iou_threshold must be from 0 to 1, got {limit}")
    result: list[Array] = []
    for sample, of_sample in enumerate(scores if count > 0 else ()):
        corners = _corners(boxes[sample], bool(attributes.get("center_point_box", 0)))
        for number, each in enumerate(of_sample):
            if least is None:
                order = np.argsort(-each, kind="stable")
            else:
                above = np.flatnonzero(
                    each > _number("NonMaxSuppression", least, "score_threshold")
                )
                order = above[np.argsort(-each[above], kind="stable")]
            kept = order[suppress_overlaps(corners[:, order], limit, count)]
            rows = np.empty((len(kept), 3), np.int64)
            rows[:, 0], rows[:, 1], rows[:, 2] = sample, number, kept
            result.append(rows)
    return [np.concatenate(result) if result else np.zeros((0, 3), np.int64)]


def _number(operator: str, array: Array, name: str) -> Any:
    """Return the one number of an operand of any rank."""
    if array.size != 1:
        raise ShapeError(f"{operator}: {name} must be one number, got shape {array.shape}")
    return array.reshape(())[()]


def _corners(boxes: Array, centered: bool) -> Array:
    """Return (5, count): the least and greatest of both axes, and the area."""
    a, b, c, d = boxes.T
    if centered:
        half = boxes.dtype.type(2)
        low, high = (a - c / half, b - d / half), (a + c / half, b + d / half)
    else:
        low, high = (np.minimum(a, c), np.minimum(b, d)), (np.maximum(a, c), np.maximum(b, d))
    return np.stack([*low, *high, (high[0] - low[0]) * (high[1] - low[1])])


def roi_align(
    attributes: Attributes, version: int, x: Array, regions: Array, samples: Array
) -> list[Array]:
    """Return (regions, channels, height, width): each region of x read between its pixels.

    regions: (count, 4), x and y of two corners. samples: (count,), the image of each.
    """
    if x.ndim != 4 or regions.shape[1:] != (4,) or samples.shape != regions.shape[:1]:
        raise ShapeError(f"RoiAlign: x {x.shape}, rois {regions.shape}, batch {samples.shape}")
    if samples.size and not 0 <= samples.min() <= samples.max() < len(x):
        raise ShapeError(f"RoiAlign: batch_indices must be from 0 to {len(x) - 1}, got {samples}")
    dtype, sizes = x.dtype, (attributes.get("output_height", 1), attributes.get("output_width", 1))
    mode = attributes.get("mode", b"avg").decode()
    if mode not in ("avg", "max"):
        raise ShapeError(f"RoiAlign: mode must be avg or max, got {mode!r}")
    default = b"half_pixel" if version >= 16 else b"output_half_pixel"
    half = attributes.get("coordinate_transformation_mode", default) == b"half_pixel"
    if max(sizes) > MOST_PLACES:
        what = f"got {max(sizes)} parts of each region"
        raise LimitError(f"RoiAlign: at most {MOST_PLACES} places of a region, {what}")
    check_memory(
        len(regions) * sum(sizes) * TABLE, lambda: f"RoiAlign: {sizes} parts of each region"
    )
    # In the numbers' own precision, as places at the border depend on it.
    kind = np.float64 if x.dtype == np.float64 else np.float32
    scale, ratio = kind(attributes.get("spatial_scale", 1.0)), attributes.get("sampling_ratio", 0)
    with np.errstate(all="ignore"):
        corners = regions.astype(kind) * scale - kind(0.5 if half else 0)
        extents = corners[:, 2:] - corners[:, :2]
    endless = ~np.isfinite(np.concatenate((corners, extents), 1)).all(1)
    if endless.any():
        first = int(np.argmax(endless))
        raise ShapeError(f"RoiAlign: rois must be finite, got {regions[first]} at [{first}]")
    if not half:
        extents = np.maximum(extents, kind(1))
    result = np.empty((len(regions), x.shape[1], *sizes), kind)
    rows, columns = (
        _Axis.from_regions(corners[:, 1 - i], extents[:, 1 - i], sizes[i], x.shape[2 + i], ratio)
        for i in (0, 1)
    )
    summed = mode == "avg" and np.isfinite(x).all()
    if summed:
        x = x.astype(kind, copy=False)
    for block in _blocks(np.maximum(rows.count * rows.size, columns.count * columns.size)):
        read = rows.source_coordinates(block), columns.source_coordinates(block)
        if summed:
            _sum_regions(x, samples, block, *read, result)
            continue
        for i, number in enumerate(block.tolist()):
            image = x[samples[number]].astype(kind, copy=False)
            result[number] = _read_region(image, read[0], read[1], i, mode)
    return [result.astype(dtype, copy=False)]


def _blocks(counts: Array) -> Iterator[Array]:
    """Yield the numbers of regions to compute together, those of as many places side by side.

    counts: (regions,), the places of each, to whose greatest all of a block are padded.
    """
    order = np.argsort(counts, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or int(counts[order[end]]) * (end + 1 - start) > BLOCK:
            yield order[start:end]
            start = end


@dataclass(frozen=True)
class _Axis:
    """An axis of an image, with the positions where regions begin along it."""

    first: Array
    """(regions, size): the beginning of each part of a region."""
    part: Array
    """(regions,): the length of a part."""
    grid: Array
    """(regions,): the places for each part of a region."""
    start: Array
    """(regions, size): the first place of a part that may lie in the image."""
    count: Array
    """(regions,): the places from `start` on that may lie in the image."""
    length: int
    """The image's pixels along the axis."""

    @property
    def size(self) -> int:
        """The parts of a region."""
        return int(self.first.shape[1])

    @classmethod
    def from_regions(cls, start: Array, extent: Array, size: int, length: int, ratio: int) -> _Axis:
        """Return the axis for regions of `size` parts that begin at `start`.

        Raises LimitError where a region has too many places to go through.
        """
        kind = start.dtype.type
        part = extent / kind(size)
        wanted = np.maximum(np.ceil(part), 0) if ratio <= 0 else np.full(len(part), float(ratio))
        if (wanted > MOST_GRID).any():
            what = f"got {wanted.max():.0f} for a region of {np.abs(extent).max()} pixels"
            raise LimitError(f"RoiAlign: at most {MOST_GRID} places for each part, {what}")
        grid = wanted.astype(np.int64)
        first = start[:, None] + np.arange(size, dtype=kind) * part[:, None]
        # Of a region that is larger than the image the places beyond it, which are nothing, are
        # left out; as places are rounded, those that may be next to it are not.
        near = (np.abs(first) + length) * (8.0 * np.finfo(kind).eps) + 1
        step = (part / np.maximum(grid, 1))[:, None].astype(np.float64)
        forward, most = step > 0, grid[:, None]
        step = np.where(forward, step, 1)
        low = np.floor((-near - first) / step) - 1
        high = np.ceil((length + near - first) / step) + 1
        low = np.where(forward, np.clip(low, 0, most), 0).astype(np.int64)
        high = np.where(forward, np.clip(high, 0, most), most).astype(np.int64)
        count = np.maximum(high - low, 0).max(1, initial=0)
        if int(count.max(initial=0)) * size > MOST_PLACES:
            what = f"got {count.max()} for each of {size} parts"
            raise LimitError(f"RoiAlign: at most {MOST_PLACES} places of a region, {what}")
        return cls(first, part, grid, np.minimum(low, most - count[:, None]), count, length)

    def source_coordinates(self, block: Array) -> _SamplePositions:
        """Return where the regions of these numbers are read."""
        kind, grid, count = self.first.dtype, self.grid[block], self.count[block]
        steps = self.start[block][:, :, None] + np.arange(int(count.max(initial=0)))
        middles = steps.astype(kind)
        middles += kind.type(0.5)
        middles *= self.part[block][:, None, None]
        middles /= np.maximum(grid, 1).astype(kind)[:, None, None]
        middles += self.first[block][:, :, None]
        there = (middles >= -1) & (middles <= self.length)
        there &= (np.arange(steps.shape[2]) < count[:, None])[:, None, :]
        at = np.clip(middles, 0, self.length - 1, out=middles)
        return _SamplePositions(at, there, count, grid, self.length)


@dataclass(frozen=True)
class _SamplePositions:
    """The positions along an axis of an image where regions are sampled."""

    at: Array
    """(regions, size, places), within the image; each region has its own part of the places."""
    inside: Array
    """Mask of the same shape: True where a sample lies in the image."""
    count: Array
    """(regions,): the places of each part that are in `at`."""
    grid: Array
    """(regions,): all places of each part, in the image or not."""
    length: int
    """The image's pixels along the axis."""

    def of_region(self, number: int) -> tuple[Array, Array]:
        """Return the places of one region (size, count), and whether anything is there."""
        count = int(self.count[number])
        return self.at[number, :, :count], self.inside[number, :, :count]

    def beyond(self, number: int) -> Array:
        """Return for each part of a region whether any of its places is outside of the image."""
        whole: Array = self.inside[number].sum(1) < self.grid[number]
        return whole

    def pixels(self) -> list[slice]:
        """Return the pixels that each region reads."""
        if not self.at.size:
            return [slice(0, 1)] * len(self.at)
        first = np.where(self.inside, self.at, self.length - 1).min((1, 2)).astype(np.int64)
        last = np.where(self.inside, self.at, 0).max((1, 2)).astype(np.int64) + 2
        return [slice(a, max(b, a + 1)) for a, b in zip(first.tolist(), last.tolist(), strict=True)]

    def weights(self, number: int, pixels: slice) -> Array:
        """Return what the parts of a region take of `pixels`, the means of its places."""
        at, there = self.of_region(number)
        wide = min(pixels.stop, self.length) - pixels.start
        if at.size * wide <= BLOCK:
            known = np.arange(pixels.start, pixels.start + wide, dtype=at.dtype)
            near = np.abs(at[:, :, None] - known)
            np.subtract(1, near, out=near)
            np.maximum(near, 0, out=near)
            near *= there[:, :, None]
            result: Array = near.sum(1)
        else:
            result = self._scatter_weights(at, there, pixels.start, wide)
        result /= max(int(self.grid[number]), 1)
        return result

    @staticmethod
    def _scatter_weights(at: Array, inside: Array, start: int, wide: int) -> Array:
        """Return the sums of `weights` in memory of as many numbers as there are places."""
        low = at.astype(np.int64)
        part = at - low
        low += np.arange(len(at))[:, None] * (wide + 1) - start
        low, part = low[inside], part[inside]
        total = np.bincount(low, 1 - part, len(at) * (wide + 1))
        total += np.bincount(low + 1, part, len(total) + 1)[: len(total)]
        return total.reshape(len(at), -1)[:, :wide].astype(at.dtype)


def _sum_regions(
    x: Array,
    samples: Array,
    block: Array,
    rows: _SamplePositions,
    columns: _SamplePositions,
    result: Array,
) -> None:
    """Write the means of the regions of `block` to `result`: by two products, as places of rows
    and of columns are apart.
    """
    channels = x.shape[1]
    spans = zip(block.tolist(), rows.pixels(), columns.pixels(), strict=True)
    for i, (number, tall, wide) in enumerate(spans):
        first, second = rows.weights(i, tall), columns.weights(i, wide)
        part = x[samples[number], :, tall, wide].transpose(1, 0, 2)
        height = part.shape[0]
        across = part.reshape(height * channels, -1) @ second.T
        whole = first @ across.reshape(height, channels * len(second))
        result[number] = whole.reshape(len(first), channels, len(second)).transpose(1, 0, 2)


def _read_region(
    image: Array, rows: _SamplePositions, columns: _SamplePositions, number: int, mode: str
) -> Array:
    """Return (channels, height, width): means, or the greatest of what the four pixels around each
    place give, as ONNX Runtime has it.
    """
    total = int(rows.grid[number]) * int(columns.grid[number])
    down, across = rows.of_region(number), columns.of_region(number)
    if not down[0].size * across[0].size * len(image):
        return np.zeros((len(image), len(down[0]), len(across[0])), image.dtype)
    if mode == "avg":
        means: Array = _combine_pixels(np.add, image, down, across) / image.dtype.type(total)
        return means
    greatest = _combine_pixels(np.maximum, image, down, across)
    # A place that is outside of the image counts as 0.
    outside = rows.beyond(number)[:, None] | columns.beyond(number)
    return np.where(outside, np.maximum(greatest, 0), greatest)


def _combine_pixels(
    combine: np.ufunc, image: Array, rows: tuple[Array, Array], columns: tuple[Array, Array]
) -> Array:
    """Return (channels, height, width): `combine` applied to the pixels around all places.

    Rows are halved until the pixels of all places are few enough to have them at once.
    """
    (height, tall), (width, wide) = rows[0].shape, columns[0].shape
    shape = len(image), height, tall, width, wide
    if prod(shape) > BLOCK and height * tall > 1:
        axis, middle = (0, height // 2) if height > 1 else (1, tall // 2)
        first, second = (
            _combine_pixels(combine, image, (at, there), columns)
            for at, there in zip(*(np.split(one, [middle], axis) for one in rows), strict=True)
        )
        if not axis:
            return np.concatenate((first, second), 1)
        together: Array = combine(first, second)
        return together
    there = rows[1][:, :, None, None] & columns[1]
    parts = []
    for row, weight in _neighbours(rows[0], image.shape[1]):
        for column, other in _neighbours(columns[0], image.shape[2]):
            pixels = image[:, row.reshape(-1, 1), column.reshape(1, -1)].reshape(shape)
            parts.append(np.where(there, pixels * (weight[:, :, None, None] * other), 0))
    result: Array = combine.reduce(combine.reduce(parts), (2, 4))
    return result


def _neighbours(at: Array, length: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the pixels before and behind each place, and the weight of each."""
    low = at.astype(np.int64)
    part = at - low
    return (low, 1 - part), (np.minimum(low + 1, length - 1), part)


NODES: Mapping[str, Callable[..., list[Array]]] = {
    "TopK": top_k,
    "NonMaxSuppression": non_max_suppression,
    "RoiAlign": roi_align,
}
"""Functions of attributes, version and operands, by ONNX operator."""
