"""ONNX Runtime's operator set com.microsoft: what is known of it, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as pybind

import glnn
from glnn.errors import ModelError, ShapeError
from glnn.onnx.operators import ENTRIES
from glnn.onnx.operators.call import MICROSOFT, Converter
from tests.onnx.runtime import node_model

X = np.linspace(-3, 3, 24, dtype=np.float32).reshape(3, 8)
SIGNED = [one for entries in ENTRIES.values() for one in entries if one.signature is not None]


def contrib(op: str, operands: list[Any], **more: Any) -> onnx.ModelProto:
    return node_model(op, operands, domain=MICROSOFT, opset=1, **more)


def load(model: onnx.ModelProto) -> glnn.InferenceSession:
    return glnn.InferenceSession(model.SerializeToString(), "cpu")


def _schemas() -> dict[tuple[str, str, int], Any]:
    return {
        (one.domain, one.name, one.since_version): one for one in pybind.get_all_operator_schema()
    }


def _default(attribute: Any) -> Any:
    """The default that a schema says, None where it says none."""
    proto = onnx.AttributeProto.FromString(attribute._default_value)
    value = helper.get_attribute_value(proto) if proto.type else None
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32),
    reason="earlier versions lack operands and attributes",
)
@pytest.mark.parametrize("entry", SIGNED, ids=lambda one: f"{one.domain}.{one.name}")
def test_signatures_are_those_of_onnx_runtime(entry: Converter) -> None:
    schema = _schemas()[entry.domain, entry.name, entry.since]
    signature = entry.signature
    assert signature is not None
    assert signature.operands == (schema.min_input, schema.max_input)
    assert signature.results == (schema.min_output, schema.max_output)
    assert set(signature.attributes) == set(schema.attributes)
    for name, attribute in schema.attributes.items():
        one, value = signature.attribute(name), signature.attributes[name]
        assert (one.kind, one.required) == (attribute.type.name, attribute.required), name
        said = _default(attribute)
        if said is not None:
            assert value == pytest.approx(said) if isinstance(said, float) else value == said


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            contrib("Foo", [X]),
            r"node 'Foo_0' is Foo of the operator set com.microsoft, of which \w+(, \w+)*"
            r"( and \d+ more)? are known",
        ),
        (contrib("QuickGelu", [X], beta=1.0), "QuickGelu has no attribute 'beta'"),
        (contrib("QuickGelu", [X], alpha=1), "'alpha' must be of type FLOAT, got INT"),
        (contrib("BiasGelu", [X]), "BiasGelu has 2 to 2 operands, got 1"),
        (contrib("Gelu", [X], outputs=2), "Gelu has 1 to 1 results, got 2"),
        (
            node_model("Gelu", [X], domain=MICROSOFT, opset=2),
            "version 2 of the operator set com.microsoft is not known",
        ),
    ],
)
def test_refused(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(model)


def test_operands_that_do_not_fit() -> None:
    with pytest.raises((ModelError, ShapeError), match=r"bias must have the last dimension of x"):
        load(contrib("BiasGelu", [X, X[0, :3]])).run(None, {"x0": X, "x1": X[0, :3]})


def test_a_function_of_the_model_comes_first() -> None:
    """As in ONNX Runtime: a model may define what it calls com.microsoft's Gelu."""
    model = contrib("Gelu", [X])
    model.opset_import.append(helper.make_opsetid("", 18))
    body = [helper.make_node("Neg", ["x"], ["y"])]
    opsets = [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function(MICROSOFT, "Gelu", ["x"], ["y"], body, opsets))
    np.testing.assert_array_equal(load(model).run(None, {"x0": X})[0], -X)


def test_open_sizes() -> None:
    """Also where too little is known of an operand to say the result's sizes."""
    model = contrib("Gelu", [X])
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    for name in ("N", "size"):
        model.graph.input[0].type.tensor_type.shape.dim.add(dim_param=name)
    session = load(model)
    assert session.get_outputs()[0].shape == ("N", "size")
    assert session.run(None, {"x0": X[:2, :3]})[0].shape == (2, 3)
