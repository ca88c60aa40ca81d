"""A network put together from layers, saved, loaded again and run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import glnn
from glnn.layers import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Softmax


def main() -> None:
    model = glnn.Model.sequential(
        [
            Conv2d(3, 8, 3, padding=1),
            ReLU(),
            MaxPool2d(2),
            Flatten(),
            Linear(8 * 16 * 16, 10),
            Softmax(),
        ],
        input_shape=(3, 32, 32),
        name="small",
    )
    print(model)
    x = np.random.default_rng(0).random((4, 3, 32, 32), dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.json"
        model.save(path)
        again = glnn.load(path)
    difference = np.abs(again(x) - model(x, backend="cpu")).max()
    print(f"loaded again, and within {difference:.1e} of NumPy")


if __name__ == "__main__":
    main()
