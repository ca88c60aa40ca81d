"""Models small enough to be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.layers import Linear, ReLU
from glnn.model import Model


@pytest.fixture
def small() -> Model:
    """relu(x @ [[1, 0, -1], [2, 1, 0]].T + [0.5, -3]) for x of shape (n, 3)."""
    linear = Linear(3, 2)
    linear.weight = np.array([[1, 0, -1], [2, 1, 0]], np.float32)
    linear.bias = np.array([0.5, -3], np.float32)
    return Model.sequential([linear, ReLU()], (3,), name="small", names=["affine", "relu"])


@pytest.fixture
def saved(small: Model, tmp_path: Path) -> Path:
    """The .json file of `small`, with its .npz file beside it."""
    small.save(tmp_path / "small.json")
    return tmp_path / "small.json"


@pytest.fixture
def edit(saved: Path) -> Callable[[Callable[[Any], object]], Path]:
    """Change the document in the .json file of `small`."""

    def change(how: Callable[[Any], object]) -> Path:
        document = json.loads(saved.read_text())
        how(document)
        saved.write_text(json.dumps(document))
        return saved

    return change


NETWORK: dict[str, Any] = {
    "layers": [
        {"layer": "AffineLayer", "weights": "1_w.json", "biases": "1_b.json"},
        {"layer": "SigmoidLayer"},
        {"layer": "AffineLayer", "weights": "2_w.json", "biases": "2_b.json"},
        {"layer": "ReLULayer"},
    ],
    "size": 4,
}
MATRICES: dict[str, list[list[float]]] = {
    "1_w": [[1, 0, -1], [2, 1, 0]],
    "1_b": [[0.5], [-3]],
    "2_w": [[1, -1], [4, 2], [-1, 0]],
    "2_b": [[0], [-1], [0.25]],
}


@pytest.fixture
def matrices() -> dict[str, list[list[float]]]:
    """The matrices of `network`, by their names."""
    return MATRICES


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """The Network Definition of a perceptron 3-2-3, with its matrices."""
    for name, rows in MATRICES.items():
        text = "\n".join(",".join(map(str, row)) for row in rows) + "\n"
        (tmp_path / f"{name}.csv").write_text(text)
        definition = {
            "rows": len(rows),
            "data_type": "csv",
            "file": f"{name}.csv",
            "cols": len(rows[0]),
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(definition))
    (tmp_path / "net.json").write_text(json.dumps(NETWORK))
    return tmp_path / "net.json"
