"""The picture of the home page, docs/detection.png: text found and read on a drawn street.

The networks are PP-OCRv4's detector and recogniser (Baidu), from the package rapidocr-onnxruntime:
examples/requirements.txt. Run it as `python docs/site/detection.py`.
"""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import find_objects, label

import glnn
from glnn.images import DetectedObject, draw_objects

OUTPUT = Path(__file__).parents[1] / "detection.png"
SIZE = (704, 416)
INSIDE = 0.3  # the least probability that a pixel is inside of a line of text
GROWN = 1.6  # the network finds the inside: how much was cut off (Liao et al. 2020, section 3.5)


def main() -> None:
    models = distribution("rapidocr-onnxruntime").locate_file("rapidocr_onnxruntime/models")
    detector = glnn.InferenceSession(f"{models}/ch_PP-OCRv4_det_infer.onnx")
    recogniser = glnn.InferenceSession(f"{models}/ch_PP-OCRv4_rec_infer.onnx")
    characters = ["", *recogniser.model.metadata["character"].splitlines(), " "]
    picture = street()
    objects = []
    for box in boxes(detector.run(None, {"x": pixels(picture)})[0][0, 0]):
        left, top, right, bottom = box
        line = picture.crop(box).resize((round(48 * (right - left) / (bottom - top)), 48))
        scores = recogniser.run(None, {"x": pixels(line)})[0][0]
        text, score = read(scores, characters)
        print(f"{text!r}, {score:.0%}, at {list(box)}")
        objects.append(DetectedObject(0, text, score, box))
    drawn = Image.fromarray(draw_objects(np.asarray(picture), objects))
    drawn.quantize(128).save(OUTPUT, optimize=True)


def street() -> Image.Image:
    """Return the picture that is searched: a shop, a menu and a bus stop."""
    picture = Image.new("RGB", SIZE, "#bcd7ea")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 352, *SIZE), "#8b8f94")
    draw.rectangle((40, 40, 456, 352), "#c98b5e")
    for row in range(40, 352, 14):
        draw.line((40, row, 456, row), "#b97c50", 2)
    draw.rectangle((64, 66, 432, 126), "#21483a")
    draw.text((248, 96), "CORNER BAKERY", "#f6e7c1", ImageFont.load_default(40), anchor="mm")
    for i, x in enumerate(range(64, 432, 46)):
        draw.rectangle((x, 140, x + 46, 168), "#f2efe8" if i % 2 else "#b5483a")
    draw.rectangle((84, 180, 276, 340), "#dfeef3")
    for i, text in enumerate(("Rye bread 3.20", "Croissant 1.80", "Apple cake 2.50")):
        at = (180, 210 + 48 * i)
        draw.text(at, text, "#2b2b33", ImageFont.load_default(22), anchor="mm")
    draw.rectangle((304, 180, 420, 352), "#5f3a26")
    draw.rectangle((322, 210, 402, 244), "#f2efe8")
    draw.text((362, 227), "OPEN", "#b5483a", ImageFont.load_default(24), anchor="mm")
    draw.rectangle((580, 130, 588, 380), "#4a4f55")
    draw.rectangle((514, 48, 656, 180), "#f4c430")
    draw.text((585, 86), "Bus stop", "#22262b", ImageFont.load_default(26), anchor="mm")
    draw.text((585, 146), "Line 42", "#22262b", ImageFont.load_default(32), anchor="mm")
    return picture


def pixels(picture: Image.Image) -> NDArray[np.float32]:
    """Return a picture as (1, 3, h, w), from -1 to 1."""
    x: NDArray[np.float32] = np.asarray(picture, np.float32) / 127.5 - 1
    return np.moveaxis(x, 2, 0)[None]


def boxes(text: NDArray[np.float32]) -> list[tuple[int, int, int, int]]:
    """Return left, top, right and bottom of each line, by the probability of each pixel."""
    found = []
    for rows, columns in find_objects(label(text > INSIDE)[0]):
        width, height = columns.stop - columns.start, rows.stop - rows.start
        edge = round(GROWN * width * height / (2 * (width + height)))
        found.append(
            (columns.start - edge, rows.start - edge, columns.stop + edge, rows.stop + edge)
        )
    return found


def read(scores: NDArray[np.float32], characters: list[str]) -> tuple[str, float]:
    """Return the text of a line, and the mean probability of its letters.

    The same character in a row is one; number 0 stands between two that are alike.
    """
    best = scores.argmax(axis=1)
    kept = (best != 0) & (best != np.concatenate([[0], best[:-1]]))
    return "".join(characters[n] for n in best[kept]), float(scores.max(axis=1)[kept].mean())


if __name__ == "__main__":
    main()
