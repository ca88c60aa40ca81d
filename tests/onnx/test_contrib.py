"""ONNX Runtime's operator set com.microsoft: what is known of it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as pybind

import glnn
from glnn.errors import DeviceError, ModelError, ShapeError
from glnn.onnx.operators import ENTRIES
from glnn.onnx.operators.call import MICROSOFT, Converter
from tests.onnx import light
from tests.onnx.contrib_cases import OLDER, numbers
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


@pytest.mark.skipif(OLDER, reason="earlier versions lack operands and attributes")
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
    with pytest.raises((ModelError, ShapeError), match=r"bias must be \(8,\), got float32 \(3,\)"):
        load(contrib("BiasGelu", [X, X[0, :3]])).run(None, {"x0": X, "x1": X[0, :3]})


def _new(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


QKV = [_new(2, 3, 8)] * 3
GROUPED = [_new(2, 1, 64), _new(2, 1, 32), _new(2, 1, 32)]
CACHE = _new(2, 2, 4, 16)
LENGTHS = [np.array([3, 3], np.int32), np.array([4], np.int32)]


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "message"),
    [
        (
            "MultiHeadAttention",
            QKV,
            {"num_heads": 3},
            r"3 heads of an operand of float32",
        ),
        ("MultiHeadAttention", [_new(2, 3, 8)], {"num_heads": 2}, "key and value must be there"),
        (
            "MultiHeadAttention",
            [*QKV, _new(8)],
            {"num_heads": 2},
            r"bias must be \(24,\), got float32 \(8,\)",
        ),
        (
            "MultiHeadAttention",
            [*QKV, None, np.ones((2, 4), np.int32)],
            {"num_heads": 2},
            r"mask of 2 samples, 3 queries and 3 keys, got int32 \(2, 4\)",
        ),
        (
            "MultiHeadAttention",
            [*QKV, None, None, _new(1, 1, 1, 3)],
            {"num_heads": 2},
            r"attention_bias must be \(2 or 1, 2 or 1, 3, 3\), got float32 \(1, 1, 1, 3\)",
        ),
        (
            "MultiHeadAttention",
            [*QKV, None, None, None, _new(2, 2, 5, 4)],
            {"num_heads": 2},
            "past_key goes with past_value",
        ),
        (
            "Attention",
            [_new(2, 3, 8), _new(8, 25)],
            {"num_heads": 2},
            r"hidden sizes \(8, 8, 8\) of weights float32 \(8, 25\)",
        ),
        ("Attention", [_new(2, 3, 8), _new(8, 24)], {"num_heads": 2, "do_rotary": 1}, "do_rotary"),
        (
            "GroupQueryAttention",
            [*GROUPED, CACHE, None, *LENGTHS],
            {"num_heads": 4, "kv_num_heads": 2},
            r"both be \(2, 2, rows, 16\), got float32 \(2, 2, 4, 16\) and None",
        ),
        (
            "GroupQueryAttention",
            [*GROUPED, CACHE, CACHE, *LENGTHS],
            {"num_heads": 4, "kv_num_heads": 3},
            "4 heads for 3 of keys",
        ),
        (
            "GroupQueryAttention",
            [*GROUPED, CACHE, CACHE, *LENGTHS],
            {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
            "do_rotary needs cos_cache and sin_cache",
        ),
        (
            "GroupQueryAttention",
            [*GROUPED, CACHE, CACHE, *LENGTHS],
            {"num_heads": 4, "kv_num_heads": 2, "sliding_window_cache": 1},
            "a local_window_size from 1 to its 4 rows, got -1",
        ),
        (
            "RotaryEmbedding",
            [_new(1, 2, 9), np.array([0]), _new(4, 4), _new(4, 4)],
            {},
            "8 numbers",
        ),
        ("FusedGemm", [_new(2, 3), _new(3, 2)], {"activation": "Sine"}, "'Sine' is not known"),
        ("SkipLayerNormalization", [X, X[:2], X[0]], {}, r"skip must be float32 \(3, 8\)"),
        ("GroupNorm", [X, X[0], X[0]], {"groups": 2, "activation": 0}, "channels and pixels"),
        (
            "MoE",
            [X, _new(3, 4), _new(5, 2, 8), None, _new(5, 8, 2)],
            {"k": 1},
            r"float32 \(3, 4\) logits of 5 experts",
        ),
    ],
)
def test_settings_that_make_no_sense(
    op: str, operands: list[Any], attributes: dict[str, Any], message: str
) -> None:
    known = [i for i, one in enumerate(operands) if one is LENGTHS[1]]
    with pytest.raises((ModelError, ShapeError), match=message):
        model = contrib(op, operands, known=known, **attributes)
        feeds = {f"x{i}": a for i, a in enumerate(operands) if a is not None and i not in known}
        load(model).run(None, feeds)


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


def test_scores_of_packed_sequences_take_no_memory_for_other_sequences() -> None:
    sequences, longest, heads, width = 32, 64, 2, 4
    tokens = sequences * longest
    x = np.zeros((tokens, heads * width), np.float32)
    offsets = np.arange(tokens, dtype=np.int32).reshape(sequences, longest)
    ends = np.arange(0, tokens + 1, longest, dtype=np.int32)
    operands = [x, x, x, None, offsets, ends]
    session = load(contrib("PackedMultiHeadAttention", operands, num_heads=heads))
    shapes = {f"x{i}": one.shape for i, one in enumerate(operands) if one is not None}
    of_scores = 4 * heads * sequences * longest**2
    assert of_scores <= session.plan(shapes).nbytes <= 4 * of_scores < 4 * heads * tokens**2


def optimized(model: bytes, path: Path) -> onnx.ModelProto:
    """Return a model as ONNX Runtime's optimizer writes it, without the layouts of its machine."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


def encoder() -> onnx.ModelProto:
    """A block of a BERT of ONNX's own operators: attention's output, two sums that are normalised,
    Gelu by Erf.
    """
    rng = np.random.default_rng(5)
    weights = {
        "w": numbers(rng, 8, 8), "b": numbers(rng, 8), "up": numbers(rng, 8, 16),
        "c": numbers(rng, 16), "down": numbers(rng, 16, 8), "d": numbers(rng, 8),
        "g": numbers(rng, 8), "h": numbers(rng, 8), "root": np.float32(np.sqrt(2)),
        "one": np.float32(1), "half": np.float32(0.5), "eighth": np.float32(0.125),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Transpose", ["x"], ["xt"], perm=[0, 2, 1]),
        node("MatMul", ["x", "xt"], ["scores"]),
        node("Mul", ["scores", "eighth"], ["scaled"]),
        node("Softmax", ["scaled"], ["shares"], axis=-1),
        node("MatMul", ["shares", "x"], ["met"]),
        node("MatMul", ["met", "w"], ["m"]),
        node("Add", ["m", "b"], ["mb"]),
        node("Add", ["mb", "x"], ["first"]),
        node("LayerNormalization", ["first", "g", "h"], ["n"], axis=-1),
        node("MatMul", ["n", "up"], ["u"]),
        node("Add", ["u", "c"], ["uc"]),
        node("Div", ["uc", "root"], ["r"]),
        node("Erf", ["r"], ["e"]),
        node("Add", ["e", "one"], ["e1"]),
        node("Mul", ["uc", "e1"], ["ue"]),
        node("Mul", ["ue", "half"], ["gelu"]),
        node("MatMul", ["gelu", "down"], ["dn"]),
        node("Add", ["dn", "d"], ["dd"]),
        node("Add", ["dd", "n"], ["second"]),
        node("LayerNormalization", ["second", "g", "h"], ["y"], axis=-1),
    ]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", "L", 8])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", "L", 8])]
    known = [numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("backend", ["cpu", "compute"])
@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("encoder", {"FusedMatMul", "BiasGelu", "SkipLayerNormalization"}),
        ("decoder", {"FusedMatMul", "QuickGelu"}),
        ("squeezenet", {"FusedConv"}),
    ],
)
def test_as_the_optimizer_writes_it(
    name: str, operators: set[str], backend: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    if name == "encoder":
        model, feeds = encoder(), {"x": numbers(rng, 2, 5, 8)}
    elif name == "decoder":
        model = onnx.load(Path(__file__).parent / "decoder-fixed.onnx")
        past = numbers(rng, 4, 1, 2, 256, 16)
        feeds = {"ids": np.array([[3]]), "pos": np.array([7]), "past": past}
    else:
        model = light.seeded(name)
        feeds = light.image(model)
    changed = optimized(model.SerializeToString(), tmp_path / "optimized.onnx")
    found = {node.op_type for node in changed.graph.node if node.domain == MICROSOFT}
    assert operators <= found, "ONNX Runtime fuses otherwise now"
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    try:
        session = glnn.InferenceSession(changed.SerializeToString(), backend)
    except DeviceError as error:
        pytest.skip(str(error))
    for got, right in zip(session.run(None, feeds), wanted, strict=True):
        np.testing.assert_allclose(got, right, 1e-4, 1e-4 * max(1, float(np.abs(right).max())))
    assert not session.hosted


def test_a_file_for_one_processor_is_refused_with_what_to_ask_for() -> None:
    """ONNX Runtime writes such files by its greatest level of optimization, the one it has."""
    blocked = "com.microsoft.nchwc"
    node = helper.make_node("ReorderOutput", ["x"], ["y"], domain=blocked, channels=3)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 8, 2, 2])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 3, 2, 2])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(blocked, 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)
    with pytest.raises(ModelError, match=r"for one kind of processor; .*ORT_ENABLE_EXTENDED"):
        glnn.InferenceSession(model.SerializeToString(), "cpu")
