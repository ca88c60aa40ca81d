"""Random numbers of ONNX: other ones in each run, also of operands that are constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import glnn
from tests.onnx.runtime import BACKENDS

HALVES = ", ".join(["0.5"] * 1000)
LIKE = f"c = Constant <value = float[1000] {{{HALVES}}}> ()"
MODELS = {
    "RandomUniform": "r = RandomUniform <shape = [1000]> ()",
    "RandomUniformLike": f"{LIKE} r = RandomUniformLike (c)",
    "RandomNormalLike": f"{LIKE} r = RandomNormalLike (c)",
    "Dropout": f"""{LIKE} half = Constant <value = float {{0.5}}> ()
        training = Constant <value = bool {{1}}> () r = Dropout (c, half, training)""",
    "Bernoulli": f"{LIKE} r = Bernoulli (c)",
    "in a loop": f"""{LIKE} two = Constant <value = int64 {{2}}> ()
        true = Constant <value = bool {{1}}> ()
        r = Loop <body = body (int64 i, bool more, float[1000] a) => (bool on, float[1000] b) {{
            d = RandomUniformLike (c)
            b = Add (a, d)
            on = Identity (more)
        }}> (two, true, c)""",
    "in a branch": f"""{LIKE} true = Constant <value = bool {{1}}> ()
        r = If <then_branch = yes () => (float[1000] a) {{ a = RandomUniformLike (c) }},
            else_branch = no () => (float[1000] b) {{ b = Identity (c) }}> (true)""",
}


def model_of(nodes: str) -> bytes:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1000] x) => (float[1000] y) '
        f"{{ {nodes} doubled = Add (r, r) y = Add (doubled, x) }}"
    )
    return parser.parse_model(text).SerializeToString()  # type: ignore[no-any-return]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_each_run_draws_others(name: str, backend: str) -> None:
    """As ONNX Runtime does; the mean is within five standard deviations of its."""
    session: Any = glnn.InferenceSession(model_of(MODELS[name]), backend)
    feeds = {"x": np.zeros(1000, np.float32)}
    runs = [session.run(None, feeds)[0] for _ in range(3)]
    assert not np.array_equal(runs[0], runs[1]) and not np.array_equal(runs[1], runs[2])
    theirs = onnxruntime.InferenceSession(model_of(MODELS[name]))
    expected = [theirs.run(None, feeds)[0] for _ in range(3)]
    assert not np.array_equal(expected[0], expected[1])
    spread = max(np.std(expected), 1e-3) / np.sqrt(3000)
    assert abs(np.mean(runs) - np.mean(expected)) < 2**0.5 * 5 * spread
