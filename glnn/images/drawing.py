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

LEAST = 9  # pixels: the smallest legible size of letters
FEW = 3  # sizes of a letter: a label with less room is more important than its probability
FIGURES = ("{:.1%}", "{:.0%}", "")
"""The formats of a probability; a shorter one is used where labels have too little room."""
PANEL, INK = 26, 255  # grey values of the panel and of letters
SHADE = 0.85  # the opacity of the panel, which makes letters legible on white, too
NOWHERE = "\U0010fffe"  # a character for which no font has a glyph
HUES = 0.381966  # of a turn: the step of hue between classes, so that neighbours differ
TINT = 0.45  # the opacity of an object's mask
LIMBS = (
    *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8)),
    *((7, 9), (8, 10), (1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),
)
"""Pairs of COCO's 17 keypoints of people between which lines are drawn."""
SEEN = 0.5  # the score above which a keypoint is drawn


def draw_labels(
    picture: NDArray[np.uint8], lines: Sequence[tuple[str, float]]
) -> NDArray[np.uint8]:
    """Return a copy of `picture`, uint8 H x W x 3, with `lines` written into its upper left corner.

    lines: labels with their probabilities, the best first; as many are drawn as fit. Letters are
    white on a darkened panel, at most a twentieth of the shorter side high, and at least 9 pixels;
    a picture without room for these is returned unchanged. A label that is too long ends in an
    ellipsis, accents are left out, and a question mark replaces a letter that Pillow's font lacks.
    Needs Pillow. Raises ShapeError for another picture, ModelError without Pillow.
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
    """Return the size of letters in pixels, at which lines take at most half of the picture, but at
    least LEAST.
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
    """Return the label and the probability of each line as texts that fit into `room` pixels.

    A label is empty where it has no room.
    """
    glyphs: dict[str, bool] = {}
    labels = [_drawable(font, label, glyphs) for label, _ in lines]
    longest = max((font.getlength(label) for label in labels), default=0)
    for pattern in FIGURES:
        figures = [pattern.format(probability) for _, probability in lines]
        width = max((font.getlength(text) for text in figures), default=0)
        label_room = room - width - (font.size / 2 if pattern else 0)
        if label_room >= min(longest, FEW * font.size):
            break
    return [
        (_cut(font, label, label_room), text) for label, text in zip(labels, figures, strict=True)
    ]


def _drawable(font: ImageFont.FreeTypeFont, label: str, glyphs: dict[str, bool]) -> str:
    """Return `label` in one line, with the letters that `font` has.

    glyphs: cache of whether `font` has a letter.
    """
    plain = unicodedata.normalize("NFKD", printable(" ".join(label.split())))
    missing_glyph = bytes(font.getmask(NOWHERE))
    result = []
    for letter in plain:
        if unicodedata.combining(letter):
            continue
        if letter not in glyphs:
            glyphs[letter] = letter == " " or bytes(font.getmask(letter)) != missing_glyph
        result.append(letter if glyphs[letter] else "?")
    return "".join(result) or "?"


def _cut(font: ImageFont.FreeTypeFont, text: str, room: float) -> str:
    """Return `text`, shortened by an ellipsis where it does not fit into `room` pixels."""
    if font.getlength(text) <= room:
        return text
    low, high = 0, len(text)  # `low` letters fit, `high` do not
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
    """Return `panel` darkened, with labels on the left and probabilities on the right."""
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

    The masks, boxes, labels and keypoints of a class have its colour. Needs Pillow. Raises
    ShapeError for another picture, ModelError without Pillow.
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
    glyphs: dict[str, bool] = {}
    for one in reversed(objects):
        colour = _colour(one.number)
        left, top, right, bottom = one.box
        right, bottom = min(right, width - 1), min(bottom, height - 1)
        draw.rectangle((left, top, max(left, right), max(top, bottom)), None, colour, thick)
        text = f"{_drawable(font, one.label, glyphs)} {one.score:.0%}"
        tall = sum(font.getmetrics()) + 2
        label_top = top - tall if top >= tall else top
        label_right = left + font.getlength(text) + 4
        draw.rectangle((left, label_top, label_right, label_top + tall), colour)
        ink = (0, 0, 0) if sum(colour) > 380 else (255, 255, 255)
        draw.text((left + 2, label_top + 1), text, ink, font)
        _draw_keypoints(draw, one.keypoints, colour, thick)
    return np.array(image)


def _draw_keypoints(
    draw: ImageDraw.ImageDraw,
    points: Sequence[Sequence[float]],
    colour: tuple[int, int, int],
    thick: int,
) -> None:
    """Draw the visible keypoints, and the limbs between those of people."""
    visible = {i: p for i, p in enumerate(points) if len(p) < 3 or p[2] > SEEN}
    for i, j in LIMBS if len(points) == 17 else ():
        if i in visible and j in visible:
            draw.line((*visible[i][:2], *visible[j][:2]), colour, thick)
    radius = 2 * thick
    for x, y in ((p[0], p[1]) for p in visible.values()):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), colour)


def _colour(number: int) -> tuple[int, int, int]:
    """Return the colour of a class."""
    red, green, blue = hsv_to_rgb(number * HUES % 1, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def _check(picture: NDArray[np.uint8]) -> None:
    """Raise ShapeError unless `picture` is uint8 H x W x 3."""
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        what = f"{picture.dtype} of shape {picture.shape}"
        raise ShapeError(f"a picture to draw on must be uint8 H x W x 3, got {what}")
