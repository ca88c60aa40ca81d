"""Rotary embeddings in pieces, as Hugging Face's models have them, are one step each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from glnn import InferenceSession
from glnn.errors import DeviceError
from glnn.model.onnx_format import model_from_proto
from tests.onnxruntime.models import I64, F, proto

BACKENDS = ["compute", "feedback", "cpu"]
HEADS, WIDTH = 3, 8


def rotated(
    second: str = "turned",
    angles: tuple[str, str] = ("a", "a"),
    first: tuple[str, str] = ("x", "c"),
) -> Any:
    """y of x (batch, tokens, heads * width) and a, b (batch or 1, tokens, width / 2).

    second: the value that is multiplied by the sines. angles: the two halves of them. first: the
    order of the factors of the first product.
    """
    node = helper.make_node
    nodes = [
        node("Reshape", ["rows", "apart"], ["heads"]),
        node("Transpose", ["heads"], ["x"], perm=[0, 2, 1, 3]),
        node("Concat", list(angles), ["both"], axis=-1),
        node("Cos", ["both"], ["cos"]),
        node("Sin", ["both"], ["sin"]),
        node("Unsqueeze", ["cos", "one"], ["c"]),
        node("Unsqueeze", ["sin", "one"], ["s"]),
        node("Slice", ["x", "zero", "half", "last", "one"], ["low"]),
        node("Slice", ["x", "half", "end", "last", "one"], ["high"]),
        node("Neg", ["high"], ["minus"]),
        node("Concat", ["minus", "low"], ["turned"], axis=-1),
        node("Concat", ["low", "minus"], ["swapped"], axis=-1),
        node("Mul", list(first), ["plain"]),
        node("Mul", [second, "s"], ["other"]),
        node("Add", ["plain", "other"], ["y"]),
    ]
    numbers = {"one": 1, "zero": 0, "half": WIDTH // 2, "last": 3, "end": 2**63 - 1}
    constants = [helper.make_tensor(name, I64, [1], [value]) for name, value in numbers.items()]
    constants.append(helper.make_tensor("apart", I64, [4], [0, 0, HEADS, WIDTH]))
    inputs = [("rows", F, ["n", "t", HEADS * WIDTH]), ("a", F, ["m", "t", WIDTH // 2])]
    inputs += [("b", F, ["m", "t", WIDTH // 2])] if "b" in angles else []
    return proto(nodes, inputs, [("y", F, ["n", HEADS, "t", WIDTH])], initializer=constants)


def expected(rows: Any, low: Any, high: Any, sign: float = 1.0) -> Any:
    """The rotation in float64. sign: -1.0 for halves that are not swapped, the second negative."""
    x = rows.astype(np.float64).reshape(*rows.shape[:2], HEADS, WIDTH).transpose(0, 2, 1, 3)
    angles = np.concatenate([low, high], axis=-1).astype(np.float64)[:, None]
    first, second = x[..., : WIDTH // 2], x[..., WIDTH // 2 :]
    parts = [-second, first] if sign > 0 else [first, -second]
    return x * np.cos(angles) + np.concatenate(parts, axis=-1) * np.sin(angles)


def opened(model: Any, backend: str) -> InferenceSession:
    try:
        return InferenceSession(model_from_proto(model, "a model"), backend)
    except DeviceError as error:
        pytest.skip(str(error))


def steps(session: InferenceSession, feeds: dict[str, Any]) -> list[str]:
    """The operators of the plan for inputs of these shapes."""
    plan = session.plan({name: array.shape for name, array in feeds.items()})
    return [step.op.name for step in plan.steps]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("first", [("x", "c"), ("c", "x")])
def test_a_rotation_is_one_step(backend, shared, first, rng) -> None:
    session = opened(rotated(first=first), backend)
    for batch, tokens in ((1, 1), (2, 5), (3, 1), (2, 9), (1, 30)):
        rows, a = rng((batch, tokens, HEADS * WIDTH)), rng((1 if shared else batch, tokens, 4))
        (y,) = session.run(None, feeds := {"rows": rows, "a": a})
        np.testing.assert_allclose(y, expected(rows, a, a), rtol=1e-4, atol=1e-5)
        assert steps(session, feeds).count("rotary") == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("other", "sign"), [({"angles": ("a", "b")}, 1.0), ({"second": "swapped"}, -1.0)]
)
def test_what_is_no_rotation_stays(backend, other, sign, rng) -> None:
    session = opened(rotated(**other), backend)
    rows, a, b = rng((2, 5, HEADS * WIDTH)), rng((2, 5, 4)), rng((2, 5, 4))
    feeds = {"rows": rows, "a": a} | ({"b": b} if "angles" in other else {})
    (y,) = session.run(None, feeds)
    wanted = expected(rows, a, b if "angles" in other else a, sign)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
    assert "rotary" not in steps(session, feeds)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
def test_no_tokens_are_rotated(backend, shape, rng) -> None:
    session = opened(rotated(), backend)
    for batch, tokens in ((2, 5), shape, (1, 4)):
        rows, a = rng((batch, tokens, HEADS * WIDTH)), rng((batch, tokens, WIDTH // 2))
        (y,) = session.run(None, {"rows": rows, "a": a})
        assert y.shape == (batch, HEADS, tokens, WIDTH)
        np.testing.assert_allclose(y, expected(rows, a, a), rtol=1e-4, atol=1e-5)


def projected(weights: dict[str, Any]) -> Any:
    """q and k, rotated, of x (batch, tokens, 16), whose heads a product makes."""
    node = helper.make_node
    nodes = [
        node("Concat", ["a", "a"], ["both"], axis=-1),
        node("Cos", ["both"], ["cos"]),
        node("Sin", ["both"], ["sin"]),
        node("Unsqueeze", ["cos", "one"], ["c"]),
        node("Unsqueeze", ["sin", "one"], ["s"]),
    ]
    for name in weights:
        nodes += [
            node("MatMul", ["x", f"{name} weight"], [f"{name} rows"]),
            node("Reshape", [f"{name} rows", "apart"], [f"{name} heads"]),
            node("Transpose", [f"{name} heads"], [f"{name} x"], perm=[0, 2, 1, 3]),
            node("Slice", [f"{name} x", "zero", "half", "last", "one"], [f"{name} low"]),
            node("Slice", [f"{name} x", "half", "end", "last", "one"], [f"{name} high"]),
            node("Neg", [f"{name} high"], [f"{name} minus"]),
            node("Concat", [f"{name} minus", f"{name} low"], [f"{name} turned"], axis=-1),
            node("Mul", [f"{name} x", "c"], [f"{name} plain"]),
            node("Mul", [f"{name} turned", "s"], [f"{name} other"]),
            node("Add", [f"{name} plain", f"{name} other"], [name]),
        ]
    numbers = {"one": 1, "zero": 0, "half": WIDTH // 2, "last": 3, "end": 2**63 - 1}
    constants = [helper.make_tensor(name, I64, [1], [value]) for name, value in numbers.items()]
    constants.append(helper.make_tensor("apart", I64, [4], [0, 0, -1, WIDTH]))
    constants += [
        helper.make_tensor(f"{name} weight", F, one.shape, one.reshape(-1))
        for name, one in weights.items()
    ]
    outputs = [(name, F, ["n", one.shape[1] // WIDTH, "t", WIDTH]) for name, one in weights.items()]
    inputs = [("x", F, ["n", "t", 16]), ("a", F, ["m", "t", WIDTH // 2])]
    return proto(nodes, inputs, outputs, initializer=constants)


@pytest.mark.parametrize("backend", BACKENDS)
def test_products_whose_results_are_rotated_are_one(backend, rng) -> None:
    weights = {"q": rng((16, 6 * WIDTH)), "k": rng((16, 4 * WIDTH))}
    session = opened(projected(weights), backend)
    for batch, tokens in ((1, 1), (2, 5), (1, 9)):
        x, a = rng((batch, tokens, 16)), rng((1, tokens, WIDTH // 2))
        found = session.run(None, feeds := {"x": x, "a": a})
        angles = np.concatenate([a, a], axis=-1).astype(np.float64)[:, None]
        for got, weight in zip(found, weights.values(), strict=True):
            rows = x.astype(np.float64) @ weight.astype(np.float64)
            heads = rows.reshape(batch, tokens, -1, WIDTH).transpose(0, 2, 1, 3)
            low, high = heads[..., : WIDTH // 2], heads[..., WIDTH // 2 :]
            turned = np.concatenate([-high, low], axis=-1)
            wanted = heads * np.cos(angles) + turned * np.sin(angles)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
        counts = steps(session, feeds)
        assert counts.count("rotary") == 2
        assert backend != "compute" or counts.count("matmul") == 1
