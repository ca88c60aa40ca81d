"""The last layer of a network from an .onnx file, trained for images that it was not made for.

PyTorch wrote tests/onnx/lenet-mnist.onnx, a LeNet that reads handwritten digits. Seen in a mirror,
it reads less than half of them. Here its last layer learns to from 500 of the bundled digits, all
others stay as they are, and 200 that it has not seen say how well. Needs `pip install '.[onnx]'`.
Writes mirrored.onnx, and runs it in ONNX Runtime where that is installed. It takes some seconds,
also without a GPU.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import glnn
from glnn.data import digits
from glnn.training import Adam, CrossEntropyLoss, Trainer

try:
    import onnx  # noqa: F401  glnn reads and writes the network by it
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is missing: pip install '.[onnx]'") from None

NETWORK = Path(__file__).parents[1] / "tests" / "onnx" / "lenet-mnist.onnx"
LEARNT = slice(500)
TESTED = slice(800, 1000)


def main() -> None:
    images, labels = digits()
    x = np.ascontiguousarray(images[:, None, :, ::-1], np.float32) / np.float32(255)
    model = glnn.load(NETWORK)
    trainer = Trainer(
        model,
        CrossEntropyLoss(),  # of the scores before the network's softmax
        Adam(lr=3e-2),
        frozen=("m.c*", "m.f*"),  # what is left is m.out
        seed=1,
    )
    before = trainer.evaluate(x[TESTED], labels[TESTED])
    trainer.fit(x[LEARNT], labels[LEARNT], epochs=6, batch_size=50)
    after = trainer.evaluate(x[TESTED], labels[TESTED])
    for when, found in (("before", before), ("after", after)):
        print(f"{100 * (found.accuracy or 0):.1f}% of {found.count} are right {when} training")
    trainer.model.save("mirrored.onnx")

    scores = glnn.load("mirrored.onnx")(x[TESTED])
    right = (scores.argmax(axis=1) == labels[TESTED]).mean()
    print(f"{100 * right:.1f}% by glnn from mirrored.onnx")
    try:
        import onnxruntime
    except ImportError:
        return
    session = onnxruntime.InferenceSession("mirrored.onnx")
    (others,) = session.run(None, {"image": x[TESTED]})
    right = (others.argmax(axis=1) == labels[TESTED]).mean()
    difference = np.abs(others - scores).max()
    print(f"{100 * right:.1f}% by ONNX Runtime, which finds the same to within {difference:.0e}")


if __name__ == "__main__":
    main()
