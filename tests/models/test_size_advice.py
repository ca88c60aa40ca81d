"""Sizes that do not fit a network which halves an image and joins it again, and those that do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import glnn
from glnn.errors import ShapeError

onnx = pytest.importorskip("onnx")


def save(path: Path, halvings: int) -> Path:
    """A network that pools so often, and joins what it enlarges again with what it was."""
    helper = onnx.helper
    nodes, names = [], ["x"]
    for i in range(halvings):
        nodes.append(
            helper.make_node("MaxPool", [names[-1]], [f"p{i}"], kernel_shape=[2, 2], strides=[2, 2])
        )
        names.append(f"p{i}")
    last = names.pop()
    for i, beside in enumerate(reversed(names)):
        nodes.append(helper.make_node("Resize", [last, "", "twice"], [f"u{i}"], mode="nearest"))
        nodes.append(helper.make_node("Concat", [f"u{i}", beside], [f"c{i}"], axis=1))
        last = f"c{i}"
    sides = ("N", 1, "h", "w")
    graph = helper.make_graph(
        nodes,
        "halved",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, sides)],
        [helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, ("N", "c", "h", "w"))],
        [onnx.numpy_helper.from_array(np.array((1, 1, 2, 2), np.float32), "twice")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


@pytest.mark.parametrize(
    ("halvings", "size", "says"),
    [
        (1, (7, 6), "multiples of 2 would do, as x (1, 1, 6, 6) or x (1, 1, 8, 6)"),
        (3, (24, 20), "multiples of 8 would do, as x (1, 1, 24, 16) or x (1, 1, 24, 24)"),
        (3, (3, 8), "multiples of 8 would do, as x (1, 1, 8, 8)"),
    ],
)
def test_sizes_nearby_are_named(
    halvings: int, size: tuple[int, int], says: str, tmp_path: Path
) -> None:
    session = glnn.InferenceSession(save(tmp_path / "net.onnx", halvings), "cpu")
    with pytest.raises(ShapeError) as error:
        session.run(None, {"x": np.zeros((1, 1, *size), np.float32)})
    assert str(error.value).endswith(f"; sizes that are {says}")
    assert str(error.value).startswith("layer ")
    named = says.rpartition("(")[2].rstrip(")").split(", ")
    fitting = tuple(map(int, named))
    (found,) = session.run(None, {"x": np.zeros(fitting, np.float32)})
    assert found.shape[2:] == fitting[2:]


def test_no_size_is_named_where_none_helps(tmp_path: Path) -> None:
    model = onnx.load(save(tmp_path / "net.onnx", 1))
    other = onnx.numpy_helper.from_array(np.zeros((1, 1, 5, 5), np.float32), "fixed")
    model.graph.initializer.append(other)
    model.graph.node[-1].input[0] = "fixed"
    onnx.save(model, tmp_path / "other.onnx")
    session = glnn.InferenceSession(tmp_path / "other.onnx", "cpu")
    with pytest.raises(ShapeError) as error:
        session.run(None, {"x": np.zeros((1, 1, 7, 7), np.float32)})
    assert "would do" not in str(error.value)
