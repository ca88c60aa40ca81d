"""The table of ONNX operators: what `python -m glnn.onnx` prints, and its page."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest

import glnn
from glnn.errors import ModelError
from glnn.onnx.__main__ import main
from glnn.onnx.operator_table import operator_rows
from tests.onnx.contrib_cases import CASES, MICROSOFT, OLDER
from tests.onnx.contrib_quantized_cases import QUANTIZED
from tests.onnx.gpu_cases import OPERATORS
from tests.onnx.operators_page import PAGE, page
from tests.onnx.runtime import node_model

PREVIEW = "ai.onnx.preview.training"


def test_page() -> None:
    """`python -m tests.onnx.operators_page` writes it anew."""
    text = PAGE.read_text("utf-8")
    if f"onnx {onnx.__version__}.\n" not in text:
        pytest.skip(f"the page is not of onnx {onnx.__version__}")
    assert text == page()


def test_json(capsys: Any) -> None:
    assert main(["--json", "--domain", "com.microsoft"]) == 0
    rows = json.loads(capsys.readouterr().out)
    gelu = next(row for row in rows if row["name"] == "Gelu")
    assert gelu == {
        "name": "Gelu", "domain": "com.microsoft", "versions": [1], "computed_by": "GPU"
    }  # fmt: skip
    assert {row["domain"] for row in rows} == {"com.microsoft"}


def test_the_gpu_computes_what_is_said_to_be_its() -> None:
    """Beside what other tests hold sessions against: cases that the host has no part in."""
    said = {(row.domain, row.name): row.computed_by for row in operator_rows(onnx)}
    for name in OPERATORS:
        assert said["ai.onnx", name] == "GPU"
    for op, make in {**CASES, **QUANTIZED}.items():
        # Casts from int16, which GPUs have not, are the host's: all of MatMulInteger16 begin so.
        if (MICROSOFT, op) in said and op != "MatMulInteger16" and not OLDER:
            hosted = all(make(np.random.default_rng(seed)).hosted for seed in range(20))
            assert said[MICROSOFT, op] == ("host" if hosted else "GPU"), op


@pytest.mark.parametrize(("name", "domain"), [("Multinomial", ""), ("Gradient", PREVIEW)])
def test_nothing_computes_what_is_said_to_be_refused(name: str, domain: str) -> None:
    rows = operator_rows(onnx)
    assert next(row for row in rows if row.name == name).computed_by == "nothing"
    attributes = {"xs": ["x0"], "y": "x0"} if name == "Gradient" else {}
    x = np.ones((2, 3), np.float32)
    model = node_model(name, [x], domain=domain, opset=1 if domain else 22, **attributes)
    with pytest.raises(ModelError, match=f"{name} .*: no kernel computes it"):
        glnn.InferenceSession(model.SerializeToString(), "cpu")


def test_table_has_every_operator_of_the_package(capsys: Any) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    known = {s.name for s in onnx.defs.get_all_schemas() if s.domain in ("", "ai.onnx.ml")}
    assert all(f"| {name} | " in printed for name in known)
