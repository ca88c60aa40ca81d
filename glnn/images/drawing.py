"""Drawing of classes and objects on pictures."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from colorsys import hsv_to_rgb
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from glnn.errors import ModelError, ShapeError, extra, printable
from glnn.images.detection import DetectedObject

if TYPE_CHECKING:
    from PIL import ImageDraw, ImageFont

LEAST = 9  # pixels: letters smaller than this nobody reads
FEW = 3  # times the size of a letter: a label that has less room is worth more than its figures
FIGURES = ("{:.1%}", "{:.0%}", "")
"""The formats of a probability; the next one where that leaves no room for the labels."""
PANEL, INK = 26, 255  # grey values: letters of INK on what is darkened towards PANEL
SHADE = 0.85  # how much of the panel covers the picture: letters are read on white, too
NOWHERE = "\U0010fffe"  # no font has a glyph for it
HUES = 0.381966  # of a turn from one class's colour to the next, so that neighbours differ
TINT = 0.45  # how much of its colour covers an object's mask
LIMBS = (
    *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8)),
    *((7, 9), (8, 10), (1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),
)
"""Pairs of COCO's 17 keypoints of people between which lines are drawn."""
SEEN = 0.5  # the score of a keypoint that is drawn


def draw_labels(
    picture: NDArray[np.uint8], lines: Sequence[tuple[str, float]]
) -> NDArray[np.uint8]:
    """Return a copy of `picture`, uint8 H x W x 3, with `lines` written into its upper left corner.

    lines: a label and its probability each, the best first, as many as there is room for. Letters
    are white on a darkened panel, at most a twentieth of the shorter side high, at least 9 pixels:
    a picture with no room for those stays as it is. A label that is too long ends in an ellipsis,
    marks over letters are left out, and for a letter that Pillow's font has not stands a question
    mark. Needs Pillow. Raises ShapeError for another picture, ModelError without Pillow.
    """
    _check(picture)
    drawn: NDArray[np.uint8] = picture.copy()
    height, width = picture.shape[:2]
    font = _font(_size(height, width, len(lines)))
    ascent, descent = font.getmetrics()
    step, pad = ascent + descent, max(1, int(font.size) // 3)
    shown = lines[: max(0, height - 2 * pad) // step]
    rows = _rows(font, shown, width - 2 * pad)
    if not any(label for label, _ in rows):
        return drawn
    labels, figures = (max(font.getlength(row[i]) for row in rows) for i in (0, 1))
    gap = font.size / 2 if figures else 0
    right = min(width, int(np.ceil(2 * pad + labels + gap + figures)))
    panel = drawn[: 2 * pad + step * len(rows), :right]
    panel[:] = _draw_rows(panel, rows, font, pad, step)
    return drawn


def _size(height: int, width: int, lines: int) -> int:
    """Return the size of letters in pixels, so that lines take at most half of the picture, if
    legible.
    """
    half = int(height / 2 / 1.25 / max(1, lines))
    return max(LEAST, min(min(height, width) // 20, half))


def _font(size: int) -> ImageFont.FreeTypeFont:
    try:
        from PIL import ImageFont

        font = ImageFont.load_default(size)
    except ImportError:  # Pillow itself, or FreeType in it
        needs = f"drawing labels needs Pillow with FreeType: {extra('images')}"
        raise ModelError(needs) from None
    assert isinstance(font, ImageFont.FreeTypeFont)  # as it is for any size
    return font


def _rows(
    font: ImageFont.FreeTypeFont, lines: Sequence[tuple[str, float]], room: int
) -> list[tuple[str, str]]:
    """Return label and figures of each line, in `room` pixels; the label is empty where it has no
    room.
    """
    known: dict[str, bool] = {}
    labels = [_drawable(font, label, known) for label, _ in lines]
    longest = max((font.getlength(label) for label in labels), default=0)
    for pattern in FIGURES:
        figures = [pattern.format(probability) for _, probability in lines]
        taken = max((font.getlength(text) for text in figures), default=0)
        left = room - taken - (font.size / 2 if pattern else 0)
        if left >= min(longest, FEW * font.size):
            break
    return [(_cut(font, label, left), text) for label, text in zip(labels, figures, strict=True)]


def _drawable(font: ImageFont.FreeTypeFont, label: str, glyphs: dict[str, bool]) -> str:
    """Return `label` in one line of glyphs that `font` has.

    glyphs: the letters it has, filled here.
    """
    plain = unicodedata.normalize("NFKD", printable(" ".join(label.split())))
    nothing = bytes(font.getmask(NOWHERE))
    result = []
    for letter in plain:
        if unicodedata.combining(letter):
            continue
        if letter not in glyphs:
            glyphs[letter] = letter == " " or bytes(font.getmask(letter)) != nothing
        result.append(letter if glyphs[letter] else "?")
    return "".join(result) or "?"


def _cut(font: ImageFont.FreeTypeFont, text: str, room: float) -> str:
    """Return `text`, or as much of its beginning as `room` pixels have, and an ellipsis."""
    if font.getlength(text) <= room:
        return text
    low, high = 0, len(text)  # letters that fit, and that do not
    while high - low > 1:
        middle = (low + high) // 2
        fits = font.getlength(f"{text[:middle].rstrip()}…") <= room
        low, high = (middle, high) if fits else (low, middle)
    return f"{text[:low].rstrip()}…" if low else ""


def _draw_rows(
    panel: NDArray[np.uint8],
    rows: Sequence[tuple[str, str]],
    font: ImageFont.FreeTypeFont,
    pad: int,
    step: int,
) -> NDArray[np.uint8]:
    """Return `panel` darkened, with the rows on it: labels on the left, figures on the right."""
    from PIL import Image, ImageDraw

    darkened = np.rint(np.arange(256) * (1 - SHADE) + PANEL * SHADE).astype(np.uint8)
    image = Image.fromarray(darkened[panel])
    draw = ImageDraw.Draw(image)
    for i, (label, figures) in enumerate(rows):
        top = pad + i * step
        draw.text((pad, top), label, (INK,) * 3, font)
        right = image.width - pad - font.getlength(figures)
        draw.text((right, top), figures, (INK,) * 3, font)
    return np.asarray(image)


def draw_objects(
    picture: NDArray[np.uint8], objects: Sequence[DetectedObject]
) -> NDArray[np.uint8]:
    """Return a copy of `picture`, uint8 H x W x 3, with objects drawn on it, the best on top.

    Each class has a colour, for the mask, the box, its label and the keypoints. Needs Pillow.
    Raises ShapeError for another picture, ModelError without Pillow.
    """
    _check(picture)
    drawn: NDArray[np.uint8] = picture.copy()
    if not objects:
        return drawn
    height, width = picture.shape[:2]
    font = _font(max(LEAST, min(height, width) // 40))
    from PIL import Image, ImageDraw

    for one in reversed(objects):
        if one.mask is not None:
            tall, wide = one.mask.inside.shape
            part = drawn[one.mask.top : one.mask.top + tall, one.mask.left : one.mask.left + wide]
            tint = TINT * np.array(_colour(one.number))
            mixed = np.rint(part * (1 - TINT) + tint).astype(np.uint8)
            part[one.mask.inside] = mixed[one.mask.inside]
    image = Image.fromarray(drawn)
    draw = ImageDraw.Draw(image)
    thick = max(1, min(height, width) // 200)
    known: dict[str, bool] = {}
    for one in reversed(objects):
        colour = _colour(one.number)
        left, top, right, bottom = one.box
        ends = (min(right, width - 1), min(bottom, height - 1))
        draw.rectangle((left, top, max(left, ends[0]), max(top, ends[1])), None, colour, thick)
        text = f"{_drawable(font, one.label, known)} {one.score:.0%}"
        tall = sum(font.getmetrics()) + 2
        above = top - tall if top >= tall else top
        draw.rectangle((left, above, left + font.getlength(text) + 4, above + tall), colour)
        ink = (0, 0, 0) if sum(colour) > 380 else (255, 255, 255)
        draw.text((left + 2, above + 1), text, ink, font)
        _draw_keypoints(draw, one.keypoints, colour, thick)
    return np.array(image)


def _draw_keypoints(
    draw: ImageDraw.ImageDraw,
    points: Sequence[Sequence[float]],
    colour: tuple[int, int, int],
    thick: int,
) -> None:
    """Draw the points that are seen, and the limbs between those of people."""
    seen = {i: p for i, p in enumerate(points) if len(p) < 3 or p[2] > SEEN}
    for i, j in LIMBS if len(points) == 17 else ():
        if i in seen and j in seen:
            draw.line((*seen[i][:2], *seen[j][:2]), colour, thick)
    for x, y in ((p[0], p[1]) for p in seen.values()):
        reach = 2 * thick
        draw.ellipse((x - reach, y - reach, x + reach, y + reach), colour)


def _colour(number: int) -> tuple[int, int, int]:
    """Return the colour of a class."""
    red, green, blue = hsv_to_rgb(number * HUES % 1, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def _check(picture: NDArray[np.uint8]) -> None:
    """Raise ShapeError where nothing can be drawn on it."""
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        what = f"{picture.dtype} of shape {picture.shape}"
        raise ShapeError(f"a picture to draw on must be uint8 H x W x 3, got {what}")
