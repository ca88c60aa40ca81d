"""docs/layers.md lists every layer, by its kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from glnn.layers import LAYERS, Layer

PAGE = Path(__file__).parents[1] / "docs/layers.md"
if not PAGE.exists():
    pytest.skip("the guides are not part of the package", allow_module_level=True)
KINDS = {
    "convolutions": "conv",
    "pools": "pool",
    "pads": "pad",
    "activations": "activations",
    "normalisations": "normalization",
    "recurrent layers": "recurrent",
    "attention": "multihead_attention",
    "products and sums": "linear",
    "embeddings": "embedding",
    "dropouts": "dropout",
    "shapes": "reshape",
    "sizes of images": "upsample",
}
"""The module in glnn.layers that has the layers of each kind."""
OWN = {"Add", "Bias", "Concat", "Pointwise", "Subsample2d"}
"""Layers that torch.nn does not have."""


def table(layers: tuple[type[Layer], ...]) -> str:
    """Return the rows of the page's table, which name each of `layers`."""
    modules = {kind: f"glnn.layers.{module}" for kind, module in KINDS.items()}
    assert {layer.__module__ for layer in layers} == set(modules.values())
    rows = []
    for kind, module in modules.items():
        names = [layer.__name__ for layer in layers if layer.__module__ == module]
        marked = (f"`{name}`*" if name in OWN else f"`{name}`" for name in names)
        rows.append(f"| {kind} | {', '.join(marked)} |\n")
    return "".join(rows)


def test_each_layer_is_in_the_table() -> None:
    text = PAGE.read_text("utf-8")
    expected = f"| kind | layers |\n|---|---|\n{table(LAYERS)}"
    assert expected in text, f"docs/layers.md: its table has to be\n{expected}"


def test_layers_of_torch_are_counted() -> None:
    torchs = [layer for layer in LAYERS if layer.__name__ not in OWN]
    (count,) = re.findall(r"(\d+) of its classes", PAGE.read_text("utf-8"))
    assert int(count) == len(torchs)
