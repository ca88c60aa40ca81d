"""Models of .onnx files with other parameters, held against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glnn
from glnn import layers as nn
from glnn.backends import NAMES
from glnn.data import digits
from glnn.errors import DeviceError, ModelError, ShapeError
from glnn.graph.graph import Kind
from glnn.model.load import load_bytes
from glnn.model.onnx_format import GraphModel
from glnn.training import SGD, Adam, CrossEntropyLoss, MSELoss, Trainer

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
LENET = Path(__file__).parents[1] / "onnx" / "lenet-mnist.onnx"
X = np.random.default_rng(8).standard_normal((3, 4), np.float32)


def net(nodes: Sequence[Any], weights: Sequence[Any] = (), **more: Any) -> Any:
    """A ModelProto from x (n, 4) to y. more: fields of the model, and sparse initialisers."""
    helper = onnx.helper
    ends = [helper.make_tensor_value_info("x", 1, ["n", 4])]
    made = [helper.make_tensor_value_info("y", 1, None)]
    graph = helper.make_graph(list(nodes), "net", ends, made, list(weights))
    graph.sparse_initializer.extend(more.pop("sparse", ()))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more)


def tensor(name: str, *shape: int, dtype: Any = np.float32) -> Any:
    array = np.random.default_rng(len(name)).standard_normal(shape).astype(dtype)
    return onnx.numpy_helper.from_array(array, name)


def other(model: GraphModel, *names: str) -> dict[str, np.ndarray]:
    """New numbers for those parameters of `model`."""
    random = np.random.default_rng(21)
    arrays = model.parameters()
    return {n: random.standard_normal(arrays[n].shape).astype(arrays[n].dtype) for n in names}


def check(model: GraphModel, arrays: dict[str, np.ndarray], path: Path, x: np.ndarray = X) -> Any:
    """`model` with `arrays`, after ONNX Runtime was seen to compute the same from its file, which
    is not what `model` computes; gives the ModelProto in the file.
    """
    before = model(x, "cpu")
    new = model.with_parameters(arrays)
    assert np.array_equal(model(x, "cpu"), before)
    found = new(x, "cpu")
    assert not np.allclose(found, before)
    for name, array in new.parameters().items():
        assert np.array_equal(array, arrays.get(name, model.parameters()[name])), name
    new.save(path)
    (expected,) = onnxruntime.InferenceSession(path).run(None, {model.inputs[0].name: x})
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)
    assert np.array_equal(glnn.load(path)(x, "cpu"), found)
    return onnx.load(path)


def test_every_parameter_of_a_network(tmp_path: Path) -> None:
    """Large and small ones; all else of the file stays as it was."""
    model = glnn.load(LENET)
    assert isinstance(model, GraphModel)
    x = np.random.default_rng(2).random((2, 1, 28, 28), np.float32)
    proto = check(model, other(model, *model.parameters()), tmp_path / "net.onnx", x)
    former = onnx.load(LENET)
    assert proto.producer_name == former.producer_name and proto.graph.node == former.graph.node
    names = [[one.name for one in of.graph.initializer] for of in (proto, former)]
    assert names[0] == names[1]


def test_one_initialiser_of_two_nodes(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    nodes = [make("MatMul", ["x", "w"], ["h"]), make("MatMul", ["h", "w"], ["y"])]
    model = load_bytes(net(nodes, [tensor("w", 4, 4)]).SerializeToString())
    assert len(check(model, other(model, "w"), tmp_path / "net.onnx").graph.initializer) == 1


@pytest.mark.parametrize("size", [4, 400])
def test_initialisers_in_a_file_of_their_own(size: int, tmp_path: Path) -> None:
    """They are in the new file itself, those that stay as they were, too."""
    make = onnx.helper.make_node
    nodes = [make("MatMul", ["x", "w"], ["h"]), make("Add", ["h", "b"], ["y"])]
    proto = net(nodes, [tensor("w", 4, size), tensor("b", size)])
    more = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save_model(proto, tmp_path / "apart.onnx", **more)
    model = glnn.load(tmp_path / "apart.onnx")
    (tmp_path / "w.bin").unlink()
    check(model, other(model, "w"), tmp_path / "net.onnx")


@pytest.mark.parametrize("attribute", ["value", "value_floats", "sparse_value"])
def test_what_a_constant_makes(attribute: str, tmp_path: Path) -> None:
    make = onnx.helper.make_node
    given: Any = [1.0, 2.0, 3.0, 4.0]
    if attribute == "value":
        given = tensor("any", 4)
    if attribute == "sparse_value":
        given = _sparse("any")
    nodes = [make("Constant", [], ["c"], **{attribute: given}), make("Mul", ["x", "c"], ["y"])]
    model = load_bytes(net(nodes).SerializeToString())
    check(model, other(model, "c"), tmp_path / "net.onnx")


def _sparse(name: str) -> Any:
    values = onnx.numpy_helper.from_array(np.array([2.0, 3.0], np.float32), name)
    places = onnx.numpy_helper.from_array(np.array([0, 3], np.int64), "places")
    return onnx.helper.make_sparse_tensor(values, places, [4])


def test_a_sparse_initialiser_becomes_a_dense_one(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Mul", ["x", "s"], ["y"])]
    model = load_bytes(net(nodes, sparse=[_sparse("s")]).SerializeToString())
    proto = check(model, other(model, "s"), tmp_path / "net.onnx")
    assert len(proto.graph.initializer) == 1 and not proto.graph.sparse_initializer


def test_numbers_of_16_bits_stay_those(tmp_path: Path) -> None:
    make = onnx.helper.make_node
    nodes = [make("Cast", ["w"], ["wide"], to=1), make("MatMul", ["x", "wide"], ["y"])]
    model = load_bytes(net(nodes, [tensor("w", 4, 4, dtype=np.float16)]).SerializeToString())
    check(model, other(model, "w"), tmp_path / "net.onnx")
    with pytest.raises(ShapeError, match="'w' must be a float16 NumPy array, got float32 array"):
        model.with_parameters({"w": np.ones((4, 4), np.float32)})


def test_what_is_refused() -> None:
    make, helper = onnx.helper.make_node, onnx.helper
    inner = [make("Constant", [], ["c"], value=tensor("c", 4)), make("Mul", ["a", "c"], ["b"])]
    scaled = helper.make_function(
        "own", "Scaled", ["a"], ["b"], inner, [helper.make_opsetid("", 17)]
    )
    nodes = [make("Scaled", ["x"], ["h"], domain="own"), make("Add", ["h", "bias"], ["y"])]
    model = load_bytes(net(nodes, [tensor("bias", 4)], functions=[scaled]).SerializeToString())
    (name,) = set(model.parameters()) - {"bias"}
    assert isinstance(model, GraphModel) and model.trainable == ("bias",)
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({name: np.ones(4, np.float32)}, ModelError, "is made inside a function"),
        ({"bais": np.ones(4, np.float32)}, ModelError, "no parameter 'bais': it has 'bias'"),
        ({"bias": np.ones(5, np.float32)}, ShapeError, r"must have shape \(4,\), got \(5,\)"),
        ({"bias": [1.0] * 4}, ShapeError, "must be a float32 NumPy array, got list"),
    ]
    for arrays, error, says in refused:
        with pytest.raises(error, match=says):
            model.with_parameters(arrays)


def test_which_parameters_are_trained() -> None:
    """Neither statistics, nor sizes, nor numbers by themselves; shared ones once."""
    make = onnx.helper.make_node
    nodes = [
        make("BatchNormalization", ["x", "scale", "shift", "mean", "var"], ["n"]),
        make("Mul", ["n", "half"], ["m"]),
        make("Resize", ["m", "", "sizes"], ["r"]),
        make("MatMul", ["r", "w"], ["h"]),
        make("MatMul", ["h", "w"], ["k"]),
        make("Gather", ["k", "rows"], ["y"]),
    ]
    half = onnx.numpy_helper.from_array(np.array(0.5, np.float32), "half")
    sizes = onnx.numpy_helper.from_array(np.ones(2, np.float32), "sizes")
    rows = onnx.numpy_helper.from_array(np.array([1, 0]), "rows")
    norms = [tensor(name, 4) for name in ("scale", "shift", "mean")]
    positive = onnx.numpy_helper.from_array(np.ones(4, np.float32), "var")
    weights = [*norms, positive, half, sizes, tensor("w", 4, 4), rows]
    model = load_bytes(net(nodes, weights).SerializeToString())
    assert isinstance(model, GraphModel)
    assert model.trainable == ("scale", "shift", "w")
    graph = model.batched(3)
    variables = {v.name for n in graph.nodes for v in n.reads if v.kind is Kind.VARIABLE}
    assert variables == {"scale", "shift", "w"}
    assert not any(value.type.symbols for node in graph.nodes for value in node.outputs)
    np.testing.assert_allclose(graph.reference(X)[0], model(X, "cpu"), 1e-4, 1e-5)


def test_a_batch_that_a_model_does_not_take() -> None:
    proto = net([onnx.helper.make_node("Mul", ["x", "w"], ["y"])], [tensor("w", 4)])
    (batch, size) = proto.graph.input[0].type.tensor_type.shape.dim
    batch.dim_value = 2
    model = load_bytes(proto.SerializeToString())
    assert isinstance(model, GraphModel)
    with pytest.raises(ShapeError, match=r"'x' must have shape \(2, 4\), got \(3, 4\)"):
        model.batched(3)
    size.dim_param = "m"
    model = load_bytes(proto.SerializeToString())
    assert isinstance(model, GraphModel)
    with pytest.raises(ModelError, match=r"input 'x' must have known sizes, got \(2, m\)"):
        model.batched(2)


@pytest.mark.parametrize("backend", NAMES)
def test_training_is_that_of_the_same_layers(backend: str, tmp_path: Path) -> None:
    """The bundled LeNet and its copy of PyTorch's, all but the last two layers frozen."""
    images, labels = digits()
    x = images[:20, None].astype(np.float32) / np.float32(255)
    frozen, found = {"lenet": ("c*",), str(LENET): ("m.c*",)}, {}
    for name, kept in frozen.items():
        model = glnn.load(name)
        try:
            trainer = Trainer(model, CrossEntropyLoss(), SGD(lr=0.5), backend, frozen=kept)
        except DeviceError as closed:
            pytest.skip(str(closed))
        for _ in range(2):
            trainer.step(x, labels[:20])
        found[name] = trainer.model
    layers, graph = found.values()
    new, former = graph.parameters(), glnn.load(LENET).parameters()
    for name, array in layers.parameters().items():
        np.testing.assert_allclose(new[f"m.{name}"], array, 1e-4, 1e-6, err_msg=name)
        assert np.array_equal(new[f"m.{name}"], former[f"m.{name}"]) is (name[0] == "c"), name
    graph.save(tmp_path / "new.onnx")
    (scores,) = onnxruntime.InferenceSession(tmp_path / "new.onnx").run(None, {"image": x})
    np.testing.assert_allclose(graph(x, "cpu"), scores, 1e-5, 1e-6)
    assert not np.allclose(glnn.load(LENET)(x, "cpu"), scores, atol=1e-3)


def test_a_shared_weight_has_the_gradients_of_all_its_readers() -> None:
    """By central differences of the graph that was read, in float64."""
    make = onnx.helper.make_node
    nodes = [
        make("Gemm", ["x", "w", "b"], ["h"], transB=1),
        make("Tanh", ["h"], ["t"]),
        make("Gemm", ["t", "w", "b"], ["u"], transB=1),
        make("Mul", ["u", "scale"], ["y"]),
    ]
    scale = onnx.numpy_helper.from_array(np.array(0.5, np.float32), "scale")
    model = load_bytes(net(nodes, [tensor("w", 4, 4), tensor("b", 4), scale]).SerializeToString())
    y = np.random.default_rng(1).standard_normal((3, 4), np.float32)
    trainer = Trainer(model, MSELoss(), SGD(lr=1.0), "cpu")
    trainer.step(X, y)
    new, arrays = trainer.model.parameters(), model.parameters()
    assert new["scale"] == 0.5
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}

    def loss(w: np.ndarray, b: np.ndarray) -> float:
        out = (np.tanh(X.astype(np.float64) @ w.T + b) @ w.T + b) * 0.5
        return float(((out - y) ** 2).mean())

    for name in ("w", "b"):
        expected = np.zeros_like(wide[name])
        for place in np.ndindex(expected.shape):
            sides = []
            for way in (1e-5, -1e-5):
                moved = {"w": wide["w"].copy(), "b": wide["b"].copy()}
                moved[name][place] += way
                sides.append(loss(**moved))
            expected[place] = (sides[0] - sides[1]) / 2e-5
        np.testing.assert_allclose(arrays[name] - new[name], expected, 1e-4, 1e-5, err_msg=name)


def test_normalisations_keep_the_statistics_of_the_file() -> None:
    make = onnx.helper.make_node
    nodes = [make("BatchNormalization", ["x", "scale", "shift", "mean", "var"], ["y"])]
    positive = onnx.numpy_helper.from_array(np.full(4, 2, np.float32), "var")
    norms = [tensor(name, 4) for name in ("scale", "shift", "mean")]
    model = load_bytes(net(nodes, [*norms, positive]).SerializeToString())
    trainer = Trainer(model, MSELoss(), SGD(lr=0.1), "cpu")
    trainer.step(X, np.zeros_like(X))
    new, former = trainer.model.parameters(), model.parameters()
    same = {name: np.array_equal(new[name], former[name]) for name in new}
    assert same == {"scale": False, "shift": False, "mean": True, "var": True}


def test_a_model_without_weights_is_refused() -> None:
    model = load_bytes(net([onnx.helper.make_node("Tanh", ["x"], ["y"])]).SerializeToString())
    with pytest.raises(ModelError, match="there is no parameter to train"):
        Trainer(model, MSELoss(), SGD(lr=0.1), "cpu").step(X, X)
    make = onnx.helper.make_node
    nodes = [make("Cast", ["w"], ["wide"], to=1), make("MatMul", ["x", "wide"], ["y"])]
    model = load_bytes(net(nodes, [tensor("w", 4, 4, dtype=np.float16)]).SerializeToString())
    with pytest.raises(ModelError, match="net: there is no parameter to train: 'w' is float16"):
        Trainer(model, MSELoss(), SGD(lr=0.1), "cpu").step(X, X)


def test_trained_layers_as_onnx(tmp_path: Path) -> None:
    """BatchNorm2d by the statistics that training left, Dropout drops nothing."""
    layers = [
        *(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Flatten(), nn.Linear(48, 4)),
    ]
    model = glnn.Model.sequential(layers, (1, 6, 6), "net")
    random = np.random.default_rng(3)
    x = 3 * random.standard_normal((40, 1, 6, 6), np.float32) + 1
    before = model.parameters()
    trainer = Trainer(model, CrossEntropyLoss(), Adam(lr=0.02), "cpu", seed=2)
    trainer.fit(x, random.integers(0, 4, 40), 2, 16, progress=False)
    trainer.model.save(tmp_path / "net.onnx")
    after = model.parameters()
    assert not any(np.array_equal(before[name], after[name]) for name in before)
    (scores,) = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(None, {"input": x})
    np.testing.assert_allclose(model(x, "cpu"), scores, 1e-4, 1e-5)
    np.testing.assert_allclose(glnn.load(tmp_path / "net.onnx")(x, "cpu"), scores, 1e-4, 1e-5)


def test_a_constant_that_no_gradient_changes_cannot_be_frozen() -> None:
    make = onnx.helper.make_node
    nodes = [make("MatMul", ["x", "w"], ["h"]), make("Reshape", ["h", "shape"], ["y"])]
    shape = onnx.numpy_helper.from_array(np.array([-1, 3]), "shape")
    model = load_bytes(net(nodes, [tensor("w", 4, 3), shape]).SerializeToString())
    assert "shape" in model.parameters()
    with pytest.raises(ModelError, match="frozen: no parameter or layer is called 'shape'"):
        Trainer(model, backend="cpu", frozen=("shape",))


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_a_model_of_a_fixed_number_of_samples_is_trained_with_so_many(samples: int) -> None:
    made = net([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], [tensor("w", 4, 5)])
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = samples
    trainer = Trainer(
        load_bytes(made.SerializeToString()), loss=MSELoss(), optimizer=SGD(lr=0.1), backend="cpu"
    )
    x, y = np.ones((samples, 4), np.float32), np.zeros((samples, 5), np.float32)
    weight = onnx.numpy_helper.to_array(made.graph.initializer[0]).astype(np.float64)
    trainer.step(x, y)
    gradient = x.T @ (x @ weight) * (2 / y.size)
    (found,) = trainer.model.parameters().values()
    np.testing.assert_allclose(found, weight - 0.1 * gradient, rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match=rf"shape \({samples}, 4\), got \(5, 4\)"):
        trainer.step(np.ones((5, 4), np.float32), np.zeros((5, 5), np.float32))
