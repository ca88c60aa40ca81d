"""Sizes and dimensions that nothing can hold are refused before anything is made."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

import glnn
from glnn.errors import ModelError


def test_a_tensor_of_many_dimensions_in_a_file_of_its_own(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[N] y) { y = Add(x, w) }'
    )
    model = parser.parse_model(text.replace("(x, w)", "(x, x)"))
    model.graph.node[0].input[1] = "w"
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[1] * 74, data_location=1)
    tensor.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(bytes(4))
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"tensor 'w': at most 32 dimensions, got 74$"):
        glnn.load(tmp_path / "net.onnx")
