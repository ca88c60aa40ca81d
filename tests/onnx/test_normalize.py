"""Normalisations from ONNX models: older opsets, training, halves, odd sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.onnx.runtime import check, node_model

Arrays = list[np.ndarray]


def numbers(*shapes: tuple[int, ...]) -> Arrays:
    generator = np.random.default_rng(7)
    return [generator.uniform(0.1, 1, shape).astype(np.float32) for shape in shapes]


RUNTIME: list[tuple[str, int, list[tuple[int, ...]], dict[str, Any]]] = [
    ("BatchNormalization", 7, [(3, 5, 1, 7), *[(5,)] * 4], {"epsilon": 1e-3}),
    ("BatchNormalization", 9, [(2, 3), *[(3,)] * 4], {}),
    ("BatchNormalization", 15, [(1, 3, 7), *[(3,)] * 4], {}),
    ("InstanceNormalization", 6, [(2, 3, 7), (3,), (3,)], {"epsilon": 0.1}),
    ("InstanceNormalization", 22, [(1, 5, 3, 3, 2), (5,), (5,)], {}),
    ("LRN", 1, [(1, 7, 2, 3)], {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 2.0}),
    ("LpNormalization", 1, [(3, 1, 7)], {"axis": 1, "p": 1}),
    ("MeanVarianceNormalization", 9, [(2, 3, 5, 4)], {}),
    ("MeanVarianceNormalization", 13, [(2, 3, 5)], {"axes": [0, 2]}),
    ("LayerNormalization", 17, [(3, 7, 5), (7, 5)], {"axis": 1}),
    ("LayerNormalization", 17, [(3, 7, 5), (5,), (5,)], {"axis": -1, "epsilon": 0.1}),
]


@pytest.mark.parametrize(("op", "opset", "shapes", "attributes"), RUNTIME)
def test_as_onnx_runtime(op, opset, shapes, attributes) -> None:
    operands = numbers(*shapes)
    known = tuple(range(1, len(operands)))
    check(node_model(op, operands, opset=opset, known=known, **attributes), operands)


@pytest.mark.parametrize(
    ("opset", "training"), [(1, {}), (6, {}), (9, {}), (15, {"training_mode": 1})]
)
def test_training_keeps_what_it_saw(opset, training) -> None:
    x, scale, bias, mean, var = operands = numbers((3, 4, 5), *[(4,)] * 4)
    now, spread = x.mean((0, 2)), x.var((0, 2))
    factor = (scale / np.sqrt(spread + 1e-5))[:, None]
    y = (x - now[:, None]) * factor + bias[:, None]
    kept = [0.8 * mean + 0.2 * now, 0.8 * var + 0.2 * spread]
    expected = [y, *kept] if opset == 15 else [y, *kept, now, spread]
    names = dict(training)
    if opset == 1:
        names["consumed_inputs"] = [0, 0, 0, 1, 1]
    model = node_model(
        "BatchNormalization", operands, len(expected), opset=opset, momentum=0.8, **names
    )
    check(model, operands, expected)


def test_activations_of_their_own() -> None:
    """Without `spatial`, each place of a sample has its own statistics."""
    x, scale, bias, mean, var = operands = numbers((3, 2, 5), *[(2, 5)] * 4)
    expected = (x - mean) / np.sqrt(var + 1e-5) * scale + bias
    check(node_model("BatchNormalization", operands, opset=7, spatial=0), operands, [expected])


def test_halves_keep_float32_statistics() -> None:
    x, scale = numbers((3, 4, 7), (7,))
    half = x.astype(np.float16)
    wide = half.astype(np.float64)
    mean, var = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    factor = 1 / np.sqrt(var + 1e-5)
    own = scale.astype(np.float16)
    expected = [(wide - mean) * factor * own, mean, factor]
    kinds = [np.float16, np.float32, np.float32]
    model = node_model("LayerNormalization", [half, own], 3, kinds=kinds)
    results = [one.astype(kind) for one, kind in zip(expected, kinds, strict=True)]
    check(model, [half, own], results, tolerance=2e-3)


@pytest.mark.parametrize(("opset", "count"), [(18, 2), (21, 6)])
def test_groups(opset, count) -> None:
    x, scale, bias = operands = numbers((2, 6, 3, 5), (count,), (count,))
    parts = x.astype(np.float64).reshape(2, 2, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
    factor, shift = (np.repeat(one, 6 // count)[:, None, None] for one in (scale, bias))
    expected = (parts.reshape(x.shape) * factor + shift).astype(np.float32)
    check(
        node_model("GroupNormalization", operands, opset=opset, num_groups=2), operands, [expected]
    )
