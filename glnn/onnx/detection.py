"""NonMaxSuppression, RoiAlign, and TopK of dtypes without kernels, by NumPy."""

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
MOST_GRID = 2**31 - 1  # samples along an axis for each bin of a region, as in ONNX Runtime
MOST_SAMPLES = 1 << 24  # samples along an axis of a region that may be in the image
TABLE = 64  # bytes for each bin of each region along an axis, with temporary arrays
BLOCK = 1 << 20  # numbers of a temporary array, as far as regions can be split


def top_k(attributes: Attributes, version: int, x: Array, k: Array | None = None) -> list[Array]:
    """Return the `k` greatest or least numbers along an axis and their indices, int64.

    The first of equal numbers; NaN is the greatest, as in NumPy and PyTorch. Always sorted.
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
    max_boxes: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
) -> list[Array]:
    """Return (n, 3) of int64: sample, class and index of the boxes that are selected.

    boxes: (samples, count, 4). scores: (samples, classes, count). max_boxes: for each class, by
    default none. iou_threshold: the IoU beyond which a box of a lower score is suppressed, by
    default 0. score_threshold: a score must exceed it. Of equal scores the first counts as higher.
    """
    if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.ndim != 3:
        raise ShapeError(f"NonMaxSuppression: boxes {boxes.shape} and scores {scores.shape}")
    if (boxes.shape[0], boxes.shape[1]) != (scores.shape[0], scores.shape[2]):
        raise ShapeError(f"NonMaxSuppression: boxes {boxes.shape} and scores {scores.shape}")
    count = (
        0
        if max_boxes is None
        else int(_number("NonMaxSuppression", max_boxes, "max_output_boxes_per_class"))
    )
    threshold = np.float32(
        0 if iou_threshold is None else _number("NonMaxSuppression", iou_threshold, "iou_threshold")
    )
    if not 0 <= threshold <= 1:
        raise ShapeError(f"NonMaxSuppression: iou_threshold must be from 0 to 1, got {threshold}")
    result: list[Array] = []
    for sample, sample_scores in enumerate(scores if count > 0 else ()):
        corners = _corners(boxes[sample], bool(attributes.get("center_point_box", 0)))
        for number, class_scores in enumerate(sample_scores):
            if score_threshold is None:
                order = np.argsort(-class_scores, kind="stable")
            else:
                above = np.flatnonzero(
                    class_scores > _number("NonMaxSuppression", score_threshold, "score_threshold")
                )
                order = above[np.argsort(-class_scores[above], kind="stable")]
            selected = order[suppress_overlaps(corners[:, order], threshold, count)]
            rows = np.empty((len(selected), 3), np.int64)
            rows[:, 0], rows[:, 1], rows[:, 2] = sample, number, selected
            result.append(rows)
    return [np.concatenate(result) if result else np.zeros((0, 3), np.int64)]


def _number(operator: str, array: Array, name: str) -> Any:
    """Return the one number of an operand of any rank."""
    if array.size != 1:
        raise ShapeError(f"{operator}: {name} must be one number, got shape {array.shape}")
    return array.reshape(())[()]


def _corners(boxes: Array, centered: bool) -> Array:
    """Return (5, count): the lower corner, the upper corner, and the area."""
    a, b, c, d = boxes.T
    if centered:
        half = boxes.dtype.type(2)
        low, high = (a - c / half, b - d / half), (a + c / half, b + d / half)
    else:
        low, high = (np.minimum(a, c), np.minimum(b, d)), (np.maximum(a, c), np.maximum(b, d))
    return np.stack([*low, *high, (high[0] - low[0]) * (high[1] - low[1])])


def roi_align(
    attributes: Attributes, version: int, x: Array, regions: Array, images: Array
) -> list[Array]:
    """Return (regions, channels, height, width): each region of x, bilinearly sampled and pooled.

    Terms: a region is divided into bins, the elements of the result; a bin has a grid of samples.
    regions: (count, 4), x and y of two corners. images: (count,), the image of each region.
    """
    if x.ndim != 4 or regions.shape[1:] != (4,) or images.shape != regions.shape[:1]:
        raise ShapeError(f"RoiAlign: x {x.shape}, rois {regions.shape}, batch {images.shape}")
    if images.size and not 0 <= images.min() <= images.max() < len(x):
        raise ShapeError(f"RoiAlign: batch_indices must be from 0 to {len(x) - 1}, got {images}")
    dtype, sizes = x.dtype, (attributes.get("output_height", 1), attributes.get("output_width", 1))
    mode = attributes.get("mode", b"avg").decode()
    if mode not in ("avg", "max"):
        raise ShapeError(f"RoiAlign: mode must be avg or max, got {mode!r}")
    default = b"half_pixel" if version >= 16 else b"output_half_pixel"
    half = attributes.get("coordinate_transformation_mode", default) == b"half_pixel"
    if max(sizes) > MOST_SAMPLES:
        what = f"got {max(sizes)} parts of each region"
        raise LimitError(f"RoiAlign: at most {MOST_SAMPLES} places of a region, {what}")
    check_memory(
        len(regions) * sum(sizes) * TABLE, lambda: f"RoiAlign: {sizes} parts of each region"
    )
    # In x's own precision, which decides whether positions at the border are inside.
    kind = np.float64 if x.dtype == np.float64 else np.float32
    scale, ratio = kind(attributes.get("spatial_scale", 1.0)), attributes.get("sampling_ratio", 0)
    with np.errstate(all="ignore"):
        corners = regions.astype(kind) * scale - kind(0.5 if half else 0)
        extents = corners[:, 2:] - corners[:, :2]
    not_finite = ~np.isfinite(np.concatenate((corners, extents), 1)).all(1)
    if not_finite.any():
        first = int(np.argmax(not_finite))
        raise ShapeError(f"RoiAlign: rois must be finite, got {regions[first]} at [{first}]")
    if not half:
        extents = np.maximum(extents, kind(1))
    result = np.empty((len(regions), x.shape[1], *sizes), kind)
    rows, columns = (
        _Axis.from_regions(corners[:, 1 - i], extents[:, 1 - i], sizes[i], x.shape[2 + i], ratio)
        for i in (0, 1)
    )
    averages = mode == "avg" and np.isfinite(x).all()
    if averages:
        x = x.astype(kind, copy=False)
    for block in _region_blocks(np.maximum(rows.count * rows.size, columns.count * columns.size)):
        positions = rows.sample_positions(block), columns.sample_positions(block)
        if averages:
            _average_regions(x, images, block, *positions, result)
            continue
        for i, number in enumerate(block.tolist()):
            image = x[images[number]].astype(kind, copy=False)
            result[number] = _pool_region(image, *positions, i, mode)
    return [result.astype(dtype, copy=False)]


def _region_blocks(counts: Array) -> Iterator[Array]:
    """Yield the indices of regions to compute together, in order of their numbers of samples.

    counts: (regions,), the samples of each. All regions of a block are padded to its largest.
    """
    order = np.argsort(counts, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or int(counts[order[end]]) * (end + 1 - start) > BLOCK:
            yield order[start:end]
            start = end


@dataclass(frozen=True)
class _Axis:
    """The bins and samples of all regions along an axis of the images."""

    bin_start: Array
    """(regions, size): the position where each bin begins."""
    bin_size: Array
    """(regions,): the length of a bin."""
    grid: Array
    """(regions,): the samples of a bin."""
    start: Array
    """(regions, size): the index of a bin's first sample that may be in the image."""
    count: Array
    """(regions,): the number of samples from `start` on that may be in the image."""
    length: int
    """The image's pixels along the axis."""

    @property
    def size(self) -> int:
        """The bins of a region."""
        return int(self.bin_start.shape[1])

    @classmethod
    def from_regions(cls, start: Array, extent: Array, size: int, length: int, ratio: int) -> _Axis:
        """Return the axis for regions of `size` bins that begin at `start`.

        ratio: the samples of a bin, or 0 for one for each pixel. Raises LimitError where a region
        has too many samples.
        """
        kind = start.dtype.type
        bin_size = extent / kind(size)
        samples = (
            np.maximum(np.ceil(bin_size), 0) if ratio <= 0 else np.full(len(bin_size), float(ratio))
        )
        if (samples > MOST_GRID).any():
            what = f"got {samples.max():.0f} for a region of {np.abs(extent).max()} pixels"
            raise LimitError(f"RoiAlign: at most {MOST_GRID} places for each part, {what}")
        grid = samples.astype(np.int64)
        bin_start = start[:, None] + np.arange(size, dtype=kind) * bin_size[:, None]
        # Samples outside the image, which contribute nothing, are skipped, so that huge regions
        # cost no more. Positions are rounded: samples within `margin` of the image are not skipped.
        margin = (np.abs(bin_start) + length) * (8.0 * np.finfo(kind).eps) + 1
        step = (bin_size / np.maximum(grid, 1))[:, None].astype(np.float64)
        is_forward, limit = step > 0, grid[:, None]
        step = np.where(is_forward, step, 1)
        low = np.floor((-margin - bin_start) / step) - 1
        high = np.ceil((length + margin - bin_start) / step) + 1
        low = np.where(is_forward, np.clip(low, 0, limit), 0).astype(np.int64)
        high = np.where(is_forward, np.clip(high, 0, limit), limit).astype(np.int64)
        count = np.maximum(high - low, 0).max(1, initial=0)
        if int(count.max(initial=0)) * size > MOST_SAMPLES:
            what = f"got {count.max()} for each of {size} parts"
            raise LimitError(f"RoiAlign: at most {MOST_SAMPLES} places of a region, {what}")
        return cls(
            bin_start, bin_size, grid, np.minimum(low, limit - count[:, None]), count, length
        )

    def sample_positions(self, block: Array) -> _SamplePositions:
        """Return the positions of the samples of the regions `block`."""
        kind, grid, count = self.bin_start.dtype, self.grid[block], self.count[block]
        indices = self.start[block][:, :, None] + np.arange(int(count.max(initial=0)))
        positions = indices.astype(kind)
        positions += kind.type(0.5)
        positions *= self.bin_size[block][:, None, None]
        positions /= np.maximum(grid, 1).astype(kind)[:, None, None]
        positions += self.bin_start[block][:, :, None]
        inside = (positions >= -1) & (positions <= self.length)
        inside &= (np.arange(indices.shape[2]) < count[:, None])[:, None, :]
        clipped = np.clip(positions, 0, self.length - 1, out=positions)
        return _SamplePositions(clipped, inside, count, grid, self.length)


@dataclass(frozen=True)
class _SamplePositions:
    """The positions along an axis of an image where regions are sampled."""

    positions: Array
    """(regions, size, samples), clipped to the image; `count` of the samples are the region's."""
    inside: Array
    """Mask of the same shape: True where a sample lies in the image."""
    count: Array
    """(regions,): the samples of each bin in `positions`."""
    grid: Array
    """(regions,): all samples of each bin, inside the image or not."""
    length: int
    """The image's pixels along the axis."""

    def region(self, number: int) -> tuple[Array, Array]:
        """Return the sample positions of a region (size, count), and the mask of those inside."""
        count = int(self.count[number])
        return self.positions[number, :, :count], self.inside[number, :, :count]

    def outside(self, number: int) -> Array:
        """Return flags for the bins of a region: True where a sample is outside the image."""
        return np.asarray(self.inside[number].sum(1) < self.grid[number])

    def pixels(self) -> list[slice]:
        """Return the pixels that each region reads."""
        if not self.positions.size:
            return [slice(0, 1)] * len(self.positions)
        first = np.where(self.inside, self.positions, self.length - 1).min((1, 2)).astype(np.int64)
        last = np.where(self.inside, self.positions, 0).max((1, 2)).astype(np.int64) + 2
        return [slice(a, max(b, a + 1)) for a, b in zip(first.tolist(), last.tolist(), strict=True)]

    def weights(self, number: int, pixels: slice) -> Array:
        """Return the matrix (size, pixels) of a region: products with it are the means of bins."""
        positions, inside = self.region(number)
        width = min(pixels.stop, self.length) - pixels.start
        if positions.size * width <= BLOCK:
            pixel_positions = np.arange(pixels.start, pixels.start + width, dtype=positions.dtype)
            pixel_weights = np.abs(positions[:, :, None] - pixel_positions)
            np.subtract(1, pixel_weights, out=pixel_weights)
            np.maximum(pixel_weights, 0, out=pixel_weights)
            pixel_weights *= inside[:, :, None]
            result: Array = pixel_weights.sum(1)
        else:
            result = self._scatter_weights(positions, inside, pixels.start, width)
        result /= max(int(self.grid[number]), 1)
        return result

    @staticmethod
    def _scatter_weights(positions: Array, inside: Array, start: int, width: int) -> Array:
        """Return the sums of samples' weights for each bin and pixel, in memory of O(samples)."""
        low = positions.astype(np.int64)
        fraction = positions - low
        low += np.arange(len(positions))[:, None] * (width + 1) - start
        low, fraction = low[inside], fraction[inside]
        total = np.bincount(low, 1 - fraction, len(positions) * (width + 1))
        total += np.bincount(low + 1, fraction, len(total) + 1)[: len(total)]
        return total.reshape(len(positions), -1)[:, :width].astype(positions.dtype)


def _average_regions(
    x: Array,
    images: Array,
    block: Array,
    rows: _SamplePositions,
    columns: _SamplePositions,
    result: Array,
) -> None:
    """Write the means of the regions of `block` to `result`.

    Sampling is separable: a product for the rows and one for the columns.
    """
    channels = x.shape[1]
    spans = zip(block.tolist(), rows.pixels(), columns.pixels(), strict=True)
    for i, (number, row_span, column_span) in enumerate(spans):
        row_weights, column_weights = rows.weights(i, row_span), columns.weights(i, column_span)
        window = x[images[number], :, row_span, column_span].transpose(1, 0, 2)
        height = window.shape[0]
        row_sums = window.reshape(height * channels, -1) @ column_weights.T
        product = row_weights @ row_sums.reshape(height, channels * len(column_weights))
        result[number] = product.reshape(len(row_weights), channels, len(column_weights)).transpose(
            1, 0, 2
        )


def _pool_region(
    image: Array, rows: _SamplePositions, columns: _SamplePositions, number: int, mode: str
) -> Array:
    """Return (channels, height, width): means of the samples, or for "max" the maximum of the four
    weighted pixels of each sample, as ONNX Runtime does.
    """
    total = int(rows.grid[number]) * int(columns.grid[number])
    down, across = rows.region(number), columns.region(number)
    if not down[0].size * across[0].size * len(image):
        return np.zeros((len(image), len(down[0]), len(across[0])), image.dtype)
    if mode == "avg":
        means: Array = _combine_pixels(np.add, image, down, across) / image.dtype.type(total)
        return means
    greatest = _combine_pixels(np.maximum, image, down, across)
    # A sample outside the image counts as 0.
    outside = rows.outside(number)[:, None] | columns.outside(number)
    return np.where(outside, np.maximum(greatest, 0), greatest)


def _combine_pixels(
    combine: np.ufunc, image: Array, rows: tuple[Array, Array], columns: tuple[Array, Array]
) -> Array:
    """Return (channels, height, width): `combine` applied to the weighted pixels of all samples.

    rows, columns: positions and masks as of `_SamplePositions.region`. Rows are halved until the
    temporary arrays have at most BLOCK numbers.
    """
    (height, row_samples), (width, column_samples) = rows[0].shape, columns[0].shape
    shape = len(image), height, row_samples, width, column_samples
    if prod(shape) > BLOCK and height * row_samples > 1:
        axis, middle = (0, height // 2) if height > 1 else (1, row_samples // 2)
        first, second = (
            _combine_pixels(combine, image, (positions, inside), columns)
            for positions, inside in zip(
                *(np.split(one, [middle], axis) for one in rows), strict=True
            )
        )
        if not axis:
            return np.concatenate((first, second), 1)
        return np.asarray(combine(first, second))
    inside = rows[1][:, :, None, None] & columns[1]
    parts = []
    for row, row_weight in _neighbours(rows[0], image.shape[1]):
        for column, column_weight in _neighbours(columns[0], image.shape[2]):
            pixels = image[:, row.reshape(-1, 1), column.reshape(1, -1)].reshape(shape)
            parts.append(
                np.where(inside, pixels * (row_weight[:, :, None, None] * column_weight), 0)
            )
    result: Array = combine.reduce(combine.reduce(parts), (2, 4))
    return result


def _neighbours(positions: Array, length: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the pixels before and behind each position, each with its weight."""
    low = positions.astype(np.int64)
    fraction = positions - low
    return (low, 1 - fraction), (np.minimum(low + 1, length - 1), fraction)


NODES: Mapping[str, Callable[..., list[Array]]] = {
    "TopK": top_k,
    "NonMaxSuppression": non_max_suppression,
    "RoiAlign": roi_align,
}
"""Functions of attributes, version and operands, by ONNX operator."""
