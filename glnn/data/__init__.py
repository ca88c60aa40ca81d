"""Data that comes with glnn: a trained model and handwritten digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["MODELS", "digits", "model"]

MODELS = ("lenet",)
"""Names of the bundled models."""


def model(name: str) -> Path:
    """Return the path of the bundled model `name`, a .json file."""
    return Path(__file__).parent / name / f"{name}.json"


def digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return 1,000 digits of MNIST's test set: images (1000, 28, 28) and labels (1000,).

    Digits are white (255) on black (0).
    """
    with np.load(Path(__file__).parent / "digits" / "digits.npz", allow_pickle=False) as archive:
        return archive["image"], archive["label"]
