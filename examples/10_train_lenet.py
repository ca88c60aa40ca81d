"""LeNet trained from nothing to read digits, on the GPU, and saved as an .onnx file.

LeNet with ReLU and max pooling, Adam with a learning rate that falls to 0. Without arguments it is
trained on 800 of the 1,000 bundled digits and tested on the other 200: some seconds on a GPU, about
a minute on a machine that has only a CPU. With the name of an .npz file of images and labels, or of
a folder with MNIST's own files, it is trained on these: `benchmarks/data/mnist-test.npz` of the
repository has 10,000, with which it reads more than 97.5% right.

    python examples/10_train_lenet.py
    python examples/10_train_lenet.py benchmarks/data/mnist-test.npz
    python examples/10_train_lenet.py ~/mnist --epochs 3

Needs `pip install '.[onnx]'`: it writes lenet.onnx, and runs it in ONNX Runtime where that is
installed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import glnn
from glnn.data import digits
from glnn.layers import Conv2d, Flatten, Linear, MaxPool2d, ReLU
from glnn.training import (
    Adam,
    CosineAnnealingLR,
    CrossEntropyLoss,
    Dataset,
    Trainer,
    read_dataset,
)

try:
    import onnx  # noqa: F401  glnn writes the network by it
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is missing: pip install '.[onnx]'") from None

BATCH = 40
TESTED = 5
"""One of so many is tested with, where a file does not say which."""
NAMES = ("c1", "relu1", "s2", "c3", "relu3", "s4", "flatten", "f5", "relu5", "f6", "relu6", "out")


def lenet() -> glnn.Model:
    """LeNet-5 with ReLU and max pooling, with random weights."""
    return glnn.Model.sequential(
        [
            Conv2d(1, 6, 5, padding=2, seed=1), ReLU(), MaxPool2d(2),
            Conv2d(6, 16, 5, seed=2), ReLU(), MaxPool2d(2), Flatten(),
            Linear(400, 120, seed=3), ReLU(), Linear(120, 84, seed=4), ReLU(),
            Linear(84, 10, seed=5),
        ],
        (1, 28, 28),
        "lenet",
        NAMES,
    )  # fmt: skip


def samples(path: Path | None) -> tuple[Dataset, Dataset]:
    """What to train with and what to test with."""
    given, test = (Dataset(*digits()), None) if path is None else read_dataset(path)
    if test is None:
        tested = np.arange(len(given)) % TESTED == 0
        given, test = given[~tested], given[tested]
    return given, test


def main() -> None:
    options = argparse.ArgumentParser(description="Train LeNet to read digits.")
    options.add_argument("data", nargs="?", type=Path)
    options.add_argument("--epochs", type=int, default=15)
    asked = options.parse_args()
    model = lenet()  # bytes become numbers from 0 to 1 for it, and images get a channel
    given, test = (some.fitting(model.inputs[0]) for some in samples(asked.data))
    steps = asked.epochs * -(-len(given) // BATCH)
    trainer = Trainer(
        model, CrossEntropyLoss(), Adam(lr=3e-3), schedule=CosineAnnealingLR(steps), seed=1
    )
    history = trainer.fit(given.x, given.y, asked.epochs, BATCH)
    print(history)
    found = trainer.evaluate(test.x, test.y, batch_size=BATCH)
    print(
        f"{100 * (found.accuracy or 0):.2f}% of {len(test)} digits that it has not seen are right"
    )
    trainer.model.save("lenet.onnx")

    try:
        import onnxruntime
    except ImportError:
        return
    session = onnxruntime.InferenceSession("lenet.onnx")
    (scores,) = session.run(None, {session.get_inputs()[0].name: test.x})
    same = np.abs(scores - trainer.model(test.x, backend="cpu")).max()
    print(f"ONNX Runtime finds the same to within {same:.0e}")


if __name__ == "__main__":
    main()
