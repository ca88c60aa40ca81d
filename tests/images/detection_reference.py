"""Objects by plain loops over float64, and pictures in their frame by OpenCV."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = tuple[int, float, tuple[float, float, float, float], list[float]]
"""Class, score, corners in the frame, and the numbers behind them."""


def frame_by_opencv(picture: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Letterbox a picture, H x W x 3, as Ultralytics does: resized by OpenCV, 114 around it."""
    import cv2

    tall, wide = picture.shape[:2]
    scale = min(height / tall, width / wide)
    new_wide, new_tall = round(wide * scale), round(tall * scale)
    if (new_tall, new_wide) != (tall, wide):
        picture = cv2.resize(picture, (new_wide, new_tall), interpolation=cv2.INTER_LINEAR)
    across, down = (width - new_wide) / 2, (height - new_tall) / 2
    top, bottom = round(down - 0.1), round(down + 0.1)
    left, right = round(across - 0.1), round(across + 0.1)
    border = (top, bottom, left, right)
    return cv2.copyMakeBorder(picture, *border, cv2.BORDER_CONSTANT, value=(114, 114, 114))


def part_of(picture: tuple[int, int], frame: tuple[int, int]) -> tuple[int, int, int, int]:
    """Top, left, height and width of a picture in its frame."""
    scale = min(frame[0] / picture[0], frame[1] / picture[1])
    tall, wide = round(picture[0] * scale), round(picture[1] * scale)
    return round((frame[0] - tall) / 2 - 0.1), round((frame[1] - wide) / 2 - 0.1), tall, wide


def to_picture(x: float, y: float, picture: tuple[int, int], frame: tuple[int, int]) -> Any:
    """A point of the frame in the picture."""
    top, left, tall, wide = part_of(picture, frame)
    return (x - left) * picture[1] / wide, (y - top) * picture[0] / tall


def rows_of(output: NDArray[Any], layout: str, classes: int, least: float) -> list[Row]:
    """Every box with at least that score. layout: v5, v8 or end."""
    found: list[Row] = []
    table = (output.T if layout == "v8" else output).astype(np.float64).tolist()
    for row in table:
        if layout == "end":
            if row[4] >= least:
                found.append((int(row[5]), row[4], tuple(row[:4]), row[6:]))
            continue
        start = 5 if layout == "v5" else 4
        scores = [row[start + c] * (row[4] if layout == "v5" else 1) for c in range(classes)]
        best = max(range(classes), key=lambda c: scores[c])
        if scores[best] >= least:
            x, y, w, h = row[:4]
            box = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
            found.append((best, scores[best], box, row[start + classes :]))
    return found


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    wide, tall = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(wide, 0) * max(tall, 0)
    both = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / both if both else 0.0


def kept_of(rows: list[Row], most_overlap: float) -> list[Row]:
    """The best, and of the others those that overlap no better one of their class by more."""
    kept: list[Row] = []
    for row in sorted(rows, key=lambda row: -row[1]):
        if all(row[0] != one[0] or overlap(row[2], one[2]) <= most_overlap for one in kept):
            kept.append(row)
    return kept


def mask_of(
    coefficients: list[float],
    prototypes: NDArray[Any],
    box: tuple[float, ...],
    picture: tuple[int, int],
    frame: tuple[int, int],
) -> NDArray[np.bool_]:
    """The mask over the whole picture, H x W: pixel by pixel between the four nearest sums."""
    sums = np.einsum("m,mhw->hw", np.array(coefficients), prototypes.astype(np.float64))
    tall, wide = sums.shape
    top, left, high, broad = part_of(picture, frame)
    mask = np.zeros(picture, bool)
    for y in range(picture[0]):
        for x in range(picture[1]):
            if not (box[0] - 1 < x < box[2] and box[1] - 1 < y < box[3]):
                continue
            v = min(max(((y + 0.5) * high / picture[0] + top) * tall / frame[0] - 0.5, 0), tall - 1)
            u = min(
                max(((x + 0.5) * broad / picture[1] + left) * wide / frame[1] - 0.5, 0), wide - 1
            )
            i, j = int(v), int(u)
            k, m, p, q = min(i + 1, tall - 1), min(j + 1, wide - 1), v - i, u - j
            upper = sums[i, j] * (1 - q) + sums[i, m] * q
            lower = sums[k, j] * (1 - q) + sums[k, m] * q
            mask[y, x] = upper * (1 - p) + lower * p > 0
    return mask
