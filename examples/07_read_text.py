"""Lines of printed text found in a picture and read.

Needs the packages that requirements.txt names and says how to install. The networks are
PP-OCRv4's detector and recogniser (Baidu), from rapidocr-onnxruntime. Writes text.png: the lines in
frames, and below them what was read.
"""

from __future__ import annotations

from importlib.metadata import distribution

import numpy as np
from numpy.typing import NDArray

import glnn

try:
    import onnx  # noqa: F401  glnn reads the network by it
    from PIL import Image, ImageDraw, ImageFont

    MODELS = distribution("rapidocr-onnxruntime").locate_file("rapidocr_onnxruntime/models")
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing.name} is missing: pip install '.[images,onnx]', and "
        "pip install --no-deps -r examples/requirements.txt"
    ) from None

LINES = ("Neural networks", "read this exactly")
FONT = ImageFont.load_default(28)
Box = tuple[int, int, int, int]


def main() -> None:
    detector = glnn.InferenceSession(f"{MODELS}/ch_PP-OCRv4_det_infer.onnx")
    recogniser = glnn.InferenceSession(f"{MODELS}/ch_PP-OCRv4_rec_infer.onnx")
    characters = ["", *recogniser.model.metadata["character"].splitlines(), " "]

    page = Image.new("RGB", (320, 128), "white")
    draw = ImageDraw.Draw(page)
    for i, text in enumerate(LINES):
        draw.text((24, 16 + 56 * i), text, "black", FONT)
    found = boxes(detector.run(None, {"x": pixels(page)})[0][0, 0])
    sheet = Image.new("RGB", (320, 224), "white")
    sheet.paste(page)
    draw = ImageDraw.Draw(sheet)
    for i, box in enumerate(found):
        width = round(48 * (box[2] - box[0]) / (box[3] - box[1]))
        line = page.crop(box).resize((width, 48), Image.Resampling.BILINEAR)
        best = recogniser.run(None, {"x": pixels(line)})[0][0].argmax(axis=1)
        # The same character in a row is one, and number 0 stands between two that are alike.
        text = "".join(
            characters[n] for n, last in zip(best, (0, *best), strict=False) if n != last
        )
        print(f"{text!r} at {list(box)}")
        draw.rectangle(box, outline="limegreen", width=2)
        draw.text((24, 136 + 40 * i), text, "limegreen", FONT)
    sheet.save("text.png")


def pixels(picture: Image.Image) -> NDArray[np.float32]:
    """(1, 3, h, w), from -1 to 1."""
    x: NDArray[np.float32] = np.asarray(picture, np.float32) / 127.5 - 1
    return np.moveaxis(x, 2, 0)[None]


def boxes(text: NDArray[np.float32]) -> list[Box]:
    """Where lines are, one below another, by the probability that a pixel is inside of one."""
    rows = np.flatnonzero((text > 0.3).any(axis=1))
    found: list[Box] = []
    for part in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
        columns = np.flatnonzero((text[part] > 0.3).any(axis=0))
        width, height = columns[-1] - columns[0], part[-1] - part[0]
        # The network finds the inside: this much was cut off (Liao et al. 2020, section 3.5).
        edge = round(1.6 * width * height / (2 * (width + height)))
        left, top = int(columns[0]) - edge, int(part[0]) - edge
        found.append((left, top, int(columns[-1]) + edge, int(part[-1]) + edge))
    return found


if __name__ == "__main__":
    main()
