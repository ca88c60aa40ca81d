"""Layers by name, and state dicts by PyTorch's names."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from glnn import InferenceSession
from glnn.errors import ModelError, ReadOnlyError, ShapeError
from glnn.layers import BatchNorm2d, Conv2d, Flatten, Linear, MultiheadAttention, ReLU
from glnn.layers.layer import LayerParameter
from glnn.model import Model, Node, TensorInfo
from tests.tensors import Tensor

X = np.array([[1, 2, 3], [-1, 0, 4]], np.float32)
WEIGHT = np.array([[1, -2, 0.5], [0, 3, -1]], np.float32)
BIAS = np.array([10, -20], np.float32)


@pytest.fixture
def net() -> Model:
    """Linear(3, 2), ReLU, Linear(2, 1), called as in PyTorch."""
    layers = OrderedDict(fc1=Linear(3, 2), act=ReLU(), fc2=Linear(2, 1))
    return Model.sequential(layers, (3,), "net")


def state(net: Model) -> dict[str, Any]:
    """A state dict that fits, other numbers in each array."""
    shapes = {name: array.shape for name, array in net.state_dict().items()}
    return {
        name: np.full(shape, place + 1, np.float32)
        for place, (name, shape) in enumerate(shapes.items())
    }


def numbers(net: Model) -> dict[str, list[Any]]:
    return {name: array.tolist() for name, array in net.state_dict().items()}


def test_layers_by_name_and_place(net: Model) -> None:
    assert net["fc1"] is net[0] is net.nodes[0].layer
    assert net[-1] is net[np.int64(2)] is net["fc2"]
    assert len(net) == 3 and list(net) == [net["fc1"], net["act"], net["fc2"]]
    assert "act" in net and net["act"] in net and "conv" not in net and WEIGHT not in net
    assert Model((), (TensorInfo("x", ("N", 3)),), ("x",))  # whatever its length


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("fc3", "net has no layer 'fc3': it has 'fc2', 'fc1' among 3"),
        ("zzz", "net has no layer 'zzz': it has 'fc1', 'act', 'fc2'"),
        (3, "net has layers 0 to 2, got 3"),
        (-4, "net has layers 0 to 2, got -4"),
        (1.0, "a layer has a name or a number, got 1.0"),
        (slice(2), r"a layer has a name or a number, got slice"),
    ],
)
def test_no_such_layer(net: Model, key: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        net[key]


@pytest.mark.parametrize("backend", ["cpu", "compute", "feedback"])
def test_running_sessions_compute_with_what_is_assigned(net: Model, backend: str) -> None:
    session = InferenceSession(net, backend)
    (before,) = session.run(None, {"input": X})
    net["fc1"].weight, net["fc1"].bias = WEIGHT, Tensor(BIAS)
    net["fc2"].weight, net["fc2"].bias = np.array([[2.0, 5.0]]), np.array([7], np.float16)
    by_hand = [[2 * 8.5 + 7], [2 * 11 + 7]]  # of the second row nothing is left by ReLU
    assert session.run(None, {"input": X})[0].tolist() == by_hand != before.tolist()
    assert net(X, backend=backend).tolist() == by_hand
    net.load_state_dict({"fc2.bias": np.array([-1])}, strict=False)
    assert session.run(None, {"input": X})[0].tolist() == [[16], [21]]
    assert net(X, backend=backend).tolist() == [[16], [21]]


def test_a_run_looks_at_no_weight_unless_some_was_assigned(
    net: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = InferenceSession(net, "cpu")
    session.run(None, {"input": X})
    looked: list[str] = []

    def revision(weight: LayerParameter) -> int:
        looked.append(weight.name)
        return weight.layer.revisions[weight.name]

    monkeypatch.setattr(LayerParameter, "revision", property(revision))
    session.run(None, {"input": X})
    assert looked == []
    net["fc1"].bias = BIAS
    session.run(None, {"input": X})
    assert set(looked) == {"weight", "bias"}


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor(WEIGHT),
        Tensor(WEIGHT, "torch.bfloat16", "cpu"),
        Tensor(WEIGHT.astype(np.float16), "torch.float16"),
        Tensor(WEIGHT.astype(np.float64), "torch.float64", "mps:0"),
        Tensor(WEIGHT[::-1], "torch.float32", "cpu", False),
    ],
    ids=lambda tensor: tensor.kind,
)
def test_tensors_are_taken(net: Model, tensor: Tensor) -> None:
    net["fc1"].weight = tensor
    taken = net["fc1"].weight
    assert (taken.dtype, taken.tolist()) == (np.float32, tensor.numbers.tolist())
    tensor.numbers[0, 0] += 1
    assert net["fc1"].weight[0, 0] != tensor.numbers[0, 0]  # it was copied
    tensor.numbers[0, 0] -= 1


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Tensor(WEIGHT.T), r"Linear weight must have shape \(2, 3\), got \(3, 2\)"),
        (Tensor(WEIGHT, broken="no storage"), "weight is no plain tensor .*: no storage"),
        (Tensor(WEIGHT.astype(complex)), "must be a float32 NumPy array, got complex128 array"),
        (Tensor([[1.0]]), "must be a tensor of numbers, got Tensor"),  # type: ignore[arg-type]
        (WEIGHT.tolist(), "must be a float32 NumPy array, got list"),
    ],
)
def test_what_is_no_parameter_is_refused(net: Model, value: Any, says: str) -> None:
    before = numbers(net)
    with pytest.raises(ShapeError, match=says):
        net["fc1"].weight = value
    with pytest.raises(ReadOnlyError, match="did you mean 'weight'"):
        net["fc1"].weigth = value
    assert numbers(net) == before


def test_layers_by_name_in_order() -> None:
    layers = {"conv": Conv2d(1, 2, 3), "flat": Flatten(), "head": Linear(2, 1)}
    assert [n.name for n in Model.sequential(layers, (1, 3, 3)).nodes] == list(layers)
    named = Model.sequential(layers, (1, 3, 3), names=["a", "b", "c"])
    assert [n.name for n in named.nodes] == ["a", "b", "c"]
    with pytest.raises(ModelError, match=r"layers are called by texts, got \[0\]"):
        Model.sequential({0: ReLU()}, (3,))  # type: ignore[dict-item]
    with pytest.raises(ModelError, match="layer 1 must be a layer, got the class ReLU"):
        Model.sequential({"a": ReLU}, (3,))  # type: ignore[dict-item]


def test_round_trip(net: Model) -> None:
    given = state(net)
    assert net.load_state_dict(given) == ([], [])
    assert numbers(net) == {name: array.tolist() for name, array in given.items()}
    assert list(net.state_dict()) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    with pytest.raises(ValueError, match="read-only"):
        net.state_dict()["fc1.bias"][0] = 1


@pytest.mark.parametrize(
    "renamed",
    [
        lambda name: name.replace("fc1", "0").replace("fc2", "2"),
        lambda name: f"module.{name}",
        lambda name: f"_orig_mod.module.{name}",
        lambda name: f"model.net.{name.replace('fc1', '0')}",
    ],
)
def test_other_names_of_the_same(net: Model, renamed: Any) -> None:
    given = {renamed(name): array for name, array in state(net).items()}
    assert net.load_state_dict(given) == ([], [])
    assert numbers(net)["fc2.bias"] == [4]


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
def test_a_checkpoint_s_state_dict(net: Model, key: str) -> None:
    net.load_state_dict({"epoch": 7, "optimizer": {"lr": 0.1}, key: state(net)})
    assert numbers(net)["fc1.bias"] == [2, 2]


def test_numbers_are_places_unless_they_are_names() -> None:
    layers = [Linear(2, 2, bias=False), Linear(2, 2, bias=False)]
    net = Model.sequential(layers, (2,), names=["1", "0"])
    one, two = np.ones((2, 2), np.float32), np.full((2, 2), 2, np.float32)
    net.load_state_dict({"0.weight": one, "1.weight": two})
    assert (net["0"].weight == 1).all() and (net["1"].weight == 2).all()
    assert net[0] is net["1"]


def test_a_name_of_a_layer_is_no_place() -> None:
    """Layer 1 has a bias, the layer called "1" none: the bias is not put elsewhere."""
    net = Model.sequential([Linear(2, 2, bias=False), Linear(2, 2)], (2,), names=["1", "b"])
    with pytest.raises(ModelError, match=r"missing: 'b.weight', 'b.bias'; unexpected: '1.bias'"):
        net.load_state_dict({"1.weight": np.ones((2, 2)), "1.bias": np.ones(2)})


def test_counts_of_batches_are_passed_over() -> None:
    net = Model.sequential({"bn": BatchNorm2d(2)}, (2, 3, 3))
    given = state(net) | {"bn.num_batches_tracked": np.array(5)}
    assert net.load_state_dict(given) == ([], [])
    assert sorted(net.state_dict()) == [
        *("bn.bias", "bn.running_mean", "bn.running_var", "bn.weight"),
    ]


@pytest.mark.parametrize("dotted", [True, False])
def test_attention_is_called_as_in_pytorch(dotted: bool) -> None:
    node = Node("attn", MultiheadAttention(4, 2), ("x", "x", "x"), "y")
    net = Model((node,), (TensorInfo("x", (3, 2, 4)),), ("y",))
    assert sorted(net.state_dict()) == [
        *("attn.in_proj_bias", "attn.in_proj_weight", "attn.out_proj.bias"),
        "attn.out_proj.weight",
    ]
    given = state(net)
    if not dotted:
        given = {name.replace("out_proj.", "out_proj_"): array for name, array in given.items()}
    net.load_state_dict(given)
    assert net["attn"].out_proj_weight.tolist() == state(net)["attn.out_proj.weight"].tolist()


def test_all_that_does_not_fit_is_said_and_nothing_assigned(net: Model) -> None:
    before = numbers(net)
    given = state(net) | {"fc2.weight": np.zeros((3, 1)), "head.weight": np.zeros(3)}
    del given["fc1.bias"]
    given["fc2.bias"] = Tensor(np.zeros(1), broken="no storage")
    with pytest.raises(ModelError) as caught:
        net.load_state_dict(given)
    assert str(caught.value) == (
        "the state dict is not that of net: do not fit: 'fc2.weight' must have shape (1, 2), got "
        "(3, 1), 'fc2.bias' is no plain tensor (torch.float32 on cuda:0): no storage; "
        "missing: 'fc1.bias'; unexpected: 'head.weight'"
    )
    assert numbers(net) == before
    with pytest.raises(ModelError, match=r"do not fit: .*no storage$"):
        net.load_state_dict(given, strict=False)
    assert numbers(net) == before


def test_a_part_is_taken_where_not_strict(net: Model) -> None:
    before = numbers(net)
    found = net.load_state_dict({"fc1.bias": BIAS, "head.bias": BIAS}, strict=False)
    assert found.missing_keys == ["fc1.weight", "fc2.weight", "fc2.bias"]
    assert found.unexpected_keys == ["head.bias"]
    assert numbers(net) == before | {"fc1.bias": [10, -20]}
    assert net.load_state_dict({}, strict=False).unexpected_keys == []


def test_other_names_in_the_same_order_are_hinted_at(net: Model) -> None:
    given = {f"x{i}.{i}": array for i, array in enumerate(state(net).values())}
    with pytest.raises(ModelError, match=r"their shapes agree: .* dict\(zip\(model.state_dict"):
        net.load_state_dict(given)
    net.load_state_dict(dict(zip(net.state_dict(), given.values())))
    assert numbers(net)["fc2.bias"] == [4]


def test_what_is_hinted_at_can_be_loaded(net: Model) -> None:
    """Counts of batches lie between the others; some names have a prefix."""
    counted = {f"x{i}.{name}": array for i, (name, array) in enumerate(state(net).items())}
    for name in ("x1.num_batches_tracked", "bn.num_batches_tracked"):
        counted[name] = np.int64(3)
    begin = {"x0.fc1.weight": counted["x0.fc1.weight"], "b.num_batches_tracked": np.int64(1)}
    prefixed = {
        f"backbone.{name}" if name.startswith("fc1") else name: array
        for name, array in state(net).items()
    }
    for state_dict, says in (
        (begin | counted, "in this order their shapes agree"),
        (prefixed, "the prefix 'backbone.' is the difference"),
    ):
        with pytest.raises(ModelError, match=says) as caught:
            net.load_state_dict(state_dict)
        hint = str(caught.value).rpartition("give ")[2]
        net.load_state_dict(eval(hint, {"model": net, "state_dict": state_dict}))
        assert numbers(net) == {name: array.tolist() for name, array in state(net).items()}
        net["fc1"].weight = np.zeros_like(net["fc1"].weight)


def test_a_prefix_behind_another_is_said(net: Model) -> None:
    given = {
        f"module.backbone.{name}" if name.startswith("fc1") else f"module.{name}": array
        for name, array in state(net).items()
    }
    with pytest.raises(ModelError, match=r"the prefix 'module.backbone.' is the difference$"):
        net.load_state_dict(given)


def test_a_checkpoint_by_another_name(net: Model) -> None:
    saved = {"net": state(net), "epoch": 3, "optimizer": {"state": {}, "param_groups": []}}
    with pytest.raises(ModelError) as caught:
        net.load_state_dict(saved)
    assert str(caught.value) == (
        'state_dict: expected arrays by their names, got a checkpoint, whose "net" has them: '
        'give torch.load(path)["net"]'
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([1], "expected arrays by their names, got list"),
        (None, "expected arrays by their names, got NoneType"),
        ({1: BIAS}, "expected arrays by their names, got 1 as a name"),
        ({"fc1.bias": BIAS, "0.bias": BIAS}, "both 'fc1.bias' and '0.bias' are 'fc1.bias' of net"),
        ({"fc1.bias": [1, 2]}, "'fc1.bias' must be a float32 NumPy array, got list"),
        ({"fc1.bias": np.array(["a", "b"])}, "must be a float32 NumPy array, got <U1 array"),
        ({"fc1.bias": np.array([1e300, 0])}, "has numbers that float32 does not hold"),
        ("weights.txt", "weights.txt: a file of weights ends with .safetensors, .npz, .pt, .pth"),
    ],
)
def test_what_is_no_state_dict(net: Model, given: Any, says: str) -> None:
    before = numbers(net)
    with pytest.raises(ModelError) as caught:
        net.load_state_dict(given, strict=False)
    assert says in str(caught.value)
    assert numbers(net) == before


def test_a_module_is_no_state_dict(net: Model) -> None:
    class Module:
        def state_dict(self) -> dict[str, Any]:
            return {}

    with pytest.raises(ModelError, match=r"got Module: give what its state_dict\(\) gives"):
        net.load_state_dict(Module())  # type: ignore[arg-type]


def test_long_lists_are_cut(net: Model) -> None:
    with pytest.raises(ModelError) as caught:
        net.load_state_dict({f"layer{i}.weight": BIAS for i in range(100)})
    assert "'layer7.weight' and 92 more" in str(caught.value) and len(str(caught.value)) < 500


def onnx_model(kind: int = 1) -> Any:
    """y = x @ fc.weight.T + fc.bias, reshaped by a constant; kind: ONNX's type of the weights."""
    onnx = pytest.importorskip("onnx")
    helper, array = onnx.helper, onnx.numpy_helper.from_array
    numpy = helper.tensor_dtype_to_np_dtype(kind)
    nodes = [
        helper.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["h"], transB=1),
        helper.make_node("Reshape", ["h", "sizes"], ["y"]),
    ]
    info = [helper.make_tensor_value_info(name, kind, ["N", n]) for name, n in (("x", 3), ("y", 2))]
    weights = [array(WEIGHT.astype(numpy), "fc.weight"), array(BIAS.astype(numpy), "fc.bias")]
    weights.append(array(np.array([-1, 2]), "sizes"))
    graph = helper.make_graph(nodes, "linear", info[:1], info[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return made.SerializeToString()


def test_a_model_of_an_onnx_file() -> None:
    content = onnx_model()
    from glnn.model.load import load_bytes

    net = load_bytes(content)
    assert sorted(net.state_dict()) == ["fc.bias", "fc.weight", "sizes"]
    assert net(X, backend="cpu").tolist() == (X @ WEIGHT.T + BIAS).tolist()
    given = {"module.fc.weight": Tensor(2 * WEIGHT), "module.fc.bias": BIAS.astype(np.float64)}
    assert net.load_state_dict(given, strict=False) == (["sizes"], [])
    assert net(X, backend="cpu").tolist() == (X @ (2 * WEIGHT).T + BIAS).tolist()
    session = InferenceSession(net, "cpu")
    assert session.run(None, {"x": X})[0].tolist() == (X @ (2 * WEIGHT).T + BIAS).tolist()
    for wrong, says in (
        ({"fc.weight": WEIGHT}, "missing: 'fc.bias', 'sizes'"),
        ({"fc.weight": WEIGHT.T}, r"'fc.weight' must have shape \(2, 3\), got \(3, 2\)"),
        ({"sizes": np.array([0.5, 1])}, "'sizes' must be an int64 NumPy array, got float64"),
    ):
        with pytest.raises(ModelError, match=says):
            net.load_state_dict(wrong)
    assert net(X, backend="cpu").tolist() == (X @ (2 * WEIGHT).T + BIAS).tolist()
    with pytest.raises(ModelError, match=r"linear has no layers: state_dict\(\) gives"):
        net["fc"]
    assert bool(net)


def test_a_model_of_an_onnx_file_is_saved_with_what_was_loaded(tmp_path) -> None:
    from glnn.model.load import load, load_bytes

    net = load_bytes(onnx_model(10))  # float16 stays float16
    net.load_state_dict({"fc.bias": Tensor(np.float32([0.1, 65504]))}, strict=False)
    net.save(tmp_path / "net.onnx")
    again = load(tmp_path / "net.onnx").state_dict()
    assert again["fc.bias"].dtype == np.float16
    assert again["fc.bias"].tolist() == np.float16([0.1, 65504]).tolist()


@pytest.mark.parametrize("way", ["bytes", "path", "model"])
def test_a_session_says_that_it_keeps_the_numbers_of_an_onnx_file(tmp_path, way) -> None:
    """What it has read itself nobody else has: parameters that it would not see are refused."""
    from glnn.model.load import load

    onnx = pytest.importorskip("onnx")
    parser = importlib.import_module("onnx.parser")
    made = parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        net (float[N, 2] x) => (float[N, 2] y) <float[2] w = {1, 2}> { y = Mul (x, w) }""")
    path = tmp_path / "net.onnx"
    onnx.save(made, path)
    source = {"bytes": made.SerializeToString(), "path": path, "model": load(path)}[way]
    session, x = InferenceSession(source, "cpu"), np.ones((1, 2), np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [[1, 2]]
    others = {"w": np.array([3, 4], np.float32)}
    if way == "model":
        session.model.load_state_dict(others)
        session = InferenceSession(source, "cpu")
    else:
        with pytest.raises(ModelError, match="keeps the numbers of"):
            session.model.load_state_dict(others)
    expected = [[3, 4]] if way == "model" else [[1, 2]]
    assert session.run(None, {"x": x})[0].tolist() == expected
