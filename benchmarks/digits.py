"""The handwritten digits that benchmarks train with: 10,000 of MNIST's, or a user's own files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glnn.errors import GlnnError
from glnn.training.dataset import Dataset, read_dataset
from glnn.training.samples import permutation

FILE = Path(__file__).parent / "data" / "mnist-test.npz"
TRAIN = 8000
"""Of the 10,000: the others are tested with."""
SEED = 15
"""Of the order in which they are split."""
PIXELS = (28, 28)


@dataclass(frozen=True, eq=False)
class Digits:
    """Images of digits in two parts, and what they show."""

    name: str
    """Where they come from, and how many there are."""
    x: NDArray[np.float32]
    """Images to train with (n, 1, 28, 28), from 0 to 1."""
    y: NDArray[np.int32]
    """Their labels (n,)."""
    test_x: NDArray[np.float32]
    """Images to test with."""
    test_y: NDArray[np.int32]
    """Their labels."""

    def flat(self) -> Digits:
        """The same with an image as one row of 784 numbers."""
        x, test_x = (images.reshape(len(images), -1) for images in (self.x, self.test_x))
        return Digits(self.name, x, self.y, test_x, self.test_y)


def digits(folder: Path | None = None) -> Digits:
    """The 10,000 of the repository, split by SEED, or those of a folder with MNIST's IDX files.

    Raises ModelError where the files are not what they should be, GlnnError for other images.
    """
    given, test = read_dataset(FILE if folder is None else folder)
    name = f"MNIST in {folder}"
    if folder is None:
        order = permutation(SEED, 0, len(given))
        given, test = given[order[:TRAIN]], given[order[TRAIN:]]
        name = "the 10,000 test images of MNIST"
    if test is None or given.x.shape[1:] != PIXELS or test.x.shape[1:] != PIXELS:
        raise GlnnError(f"--data: expected images of 28 x 28 to train and to test with in {folder}")
    name += f", {len(given):,} to train with and {len(test):,} to test with"
    return Digits(name, _images(given), given.y, _images(test), test.y)


def _images(given: Dataset) -> NDArray[np.float32]:
    """(n, 1, 28, 28), from 0 to 1."""
    scaled: NDArray[np.float32] = given.x[:, None] / np.float32(255)
    return scaled
