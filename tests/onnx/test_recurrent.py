"""Recurrent layers from ONNX models, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glnn import onnx_backend
from glnn.core.types import DType, TensorType
from glnn.errors import ModelError, ShapeError
from glnn.graph.expression import Arg
from glnn.graph.operators import PhasedRecurrence, RecurrentStep
from glnn.session import InferenceSession
from tests.onnx.runtime import check, node_model

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def operands(op: str, t: int, b: int, i: int, h: int, d: int, *, lengths: Any = None) -> list[Any]:
    """Random X, W, R, B, sequence_lens, initial_h and, for an LSTM, initial_c and P."""
    generator = np.random.default_rng(t * b + h)

    def random(*shape: int) -> np.ndarray:
        return generator.uniform(-1, 1, shape).astype(np.float32)

    rows = GATES[op] * h
    found = [random(t, b, i), random(d, rows, i), random(d, rows, h), random(d, 2 * rows)]
    found += [None if lengths is None else np.array(lengths, np.int32), random(d, b, h)]
    return [*found, random(d, b, h), random(d, 3 * h)] if op == "LSTM" else found


CASES: list[tuple[str, dict[str, Any], tuple[int, ...], Any]] = [
    ("LSTM", {"clip": 0.3}, (3, 2, 3, 5), None),
    ("LSTM", {"input_forget": 1, "direction": "reverse"}, (2, 1, 1, 1), None),
    (
        "LSTM",
        {
            "direction": "bidirectional",
            "activations": ["HardSigmoid", "Relu", "Softsign", "Sigmoid", "Affine", "ScaledTanh"],
            "activation_alpha": [0.3, 1.5, 0.7],
            "activation_beta": [0.4, 0.1, 1.1],
        },
        (3, 3, 2, 7),
        [3, 1, 2],
    ),
    ("LSTM", {"direction": "bidirectional"}, (5, 4, 3, 8), [5, 0, 3, 1]),
    ("GRU", {"direction": "bidirectional"}, (4, 3, 3, 5), [2, 4, 1]),
    ("GRU", {"clip": 0.4, "activations": ["HardSigmoid", "Relu"]}, (6, 2, 3, 4), None),
    ("GRU", {}, (1, 2, 3, 7), None),
    ("GRU", {"linear_before_reset": 1, "direction": "bidirectional"}, (3, 5, 2, 13), None),
    ("GRU", {"clip": 0.5, "linear_before_reset": 1}, (2, 1, 3, 4), None),
    ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.2]}, (3, 2, 2, 3), None),
    ("RNN", {"direction": "reverse", "activations": ["Elu"]}, (4, 2, 2, 3), [4, 2]),
]


@pytest.mark.parametrize(("op", "attributes", "sizes", "lengths"), CASES)
def test_as_onnx_runtime(op, attributes, sizes, lengths) -> None:
    t, b, i, h = sizes
    d = 2 if attributes.get("direction") == "bidirectional" else 1
    given = operands(op, t, b, i, h, d, lengths=lengths)
    model = node_model(op, given, 3 if op == "LSTM" else 2, hidden_size=h, **attributes)
    check(model, given)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_all_steps_of_a_gru_that_resets_before_are_one_operator(direction: str) -> None:
    """On the host; without that operator each phase of each step is one, of the same results."""
    given = operands("GRU", 5, 2, 3, 6, 2 if direction == "bidirectional" else 1)
    content = node_model("GRU", given, 2, hidden_size=6, direction=direction).SerializeToString()
    feeds = {f"x{i}": array for i, array in enumerate(given) if array is not None}
    shapes = {name: array.shape for name, array in feeds.items()}
    plan = InferenceSession(content, "cpu").plan(shapes)
    apart = InferenceSession(content, "cpu", without=["recurrences"]).plan(shapes)
    assert sum(isinstance(step.op, PhasedRecurrence) for step in plan.steps) == 1
    assert not [step for step in plan.steps if isinstance(step.op, RecurrentStep)]
    assert sum(isinstance(step.op, RecurrentStep) for step in apart.steps) == 10
    for one, other in zip(plan.run(feeds).values(), apart.run(feeds).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_shapes_that_no_phases_have() -> None:
    first = RecurrentStep((Arg(0), Arg(1)))
    op = PhasedRecurrence(first, RecurrentStep((Arg(0),)))
    shapes = {"x": (1, 3, 2, 1, 4), "first_weight": (1, 1, 4, 4), "second_weight": (1, 1, 4, 4)}
    assert op.shape_of({**shapes, "state": (1, 2, 1, 1, 4)}) == (3, 1, 2, 1, 1, 4)
    with pytest.raises(ShapeError, match=r"phased_recurrence: .* makes"):
        op.shape_of({**shapes, "state": (1, 2, 1, 2, 4)})
    with pytest.raises(ShapeError, match="first_weight must be float32"):
        types = {**shapes, "state": (1, 2, 1, 1, 4)}
        op.infer(
            [
                TensorType(types[name], DType.int32 if name == "first_weight" else DType.float32)
                for name in op.operands
            ]
        )


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_batches_first_are_steps_first_turned_round(op) -> None:
    given = operands(op, 3, 2, 4, 5, 2)
    outputs = 3 if op == "LSTM" else 2
    plain = node_model(op, given, outputs, hidden_size=5, direction="bidirectional")
    expected = check(plain, given)
    turned = [
        None if one is None else one.transpose(1, 0, 2) if place in (0, 5, 6) else one
        for place, one in enumerate(given)
    ]
    model = node_model(op, turned, outputs, hidden_size=5, direction="bidirectional", layout=1)
    late = [expected[0].transpose(2, 0, 1, 3), *(end.transpose(1, 0, 2) for end in expected[1:])]
    check(model, turned, late)


def test_an_operand_of_too_many_dimensions_is_named_with_its_shape() -> None:
    given = operands("LSTM", 3, 2, 4, 5, 1)
    model = node_model("LSTM", [given[0][None], *given[1:]], 3, hidden_size=5)
    with pytest.raises(ModelError, match=r"LSTM: operands float32 \(1, 3, 2, 4\), .* do not fit"):
        onnx_backend.prepare(model, backend="cpu")
