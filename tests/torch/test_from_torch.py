"""`Model.from_torch` against PyTorch itself: `make check-torch` has torch and torchvision."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch: make check-torch has it")
nn = torch.nn

from glnn import InferenceSession, Model, load  # noqa: E402
from glnn.errors import ModelError  # noqa: E402
from glnn.validation.comparison import relative_error  # noqa: E402

BACKENDS = ("compute", "feedback")
COMPUTE = BACKENDS[:1]
TORCHVISION = {
    "resnet18": 33,
    "mobilenet_v2": 33,
    "squeezenet1_1": 33,
    "densenet121": 33,
    "shufflenet_v2_x0_5": 33,
    "efficientnet_b0": 33,
}
"""Networks, and the height of the images that they are given."""


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def like(module: Any, *inputs: Any, backends: Any = COMPUTE, **options: Any) -> Model:
    """The model of `module`, whose outputs for `inputs` are PyTorch's."""
    model = Model.from_torch(module, inputs, **options)
    check(model, module, *inputs, backends=backends)
    return model


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("factor", [0.7, 1.3, 2.0])
def test_resizing_by_a_factor(mode: str, factor: float) -> None:
    """0.7 of 5 places are 3.5, of which there are 3; with aligned corners, and without."""

    class Resizing(nn.Module):
        def __init__(self, corners: bool | None) -> None:
            super().__init__()
            self.options = {"scale_factor": factor, "mode": mode, "align_corners": corners}

        def forward(self, x: Any) -> Any:
            return nn.functional.interpolate(x, **self.options)

    for corners in (None,) if mode == "nearest" else (True, False):
        like(Resizing(corners), torch.randn(1, 2, 5, 7), backends=BACKENDS)


def check(model: Model, module: Any, *inputs: Any, backends: Any = COMPUTE) -> None:
    module.eval()
    expected = flat(module(*inputs))
    feeds = {info.name: x.numpy() for info, x in zip(model.inputs, inputs, strict=True)}
    for backend in backends:
        session = InferenceSession(model, backend)
        found = session.run(None, feeds)
        for one, other in zip(found, expected, strict=True):
            assert (one.shape, one.dtype) == (tuple(other.shape), other.numpy().dtype)
            assert relative_error(one, other.double().numpy()) < 1e-4
        assert not session.hosted


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [t for one in value for t in flat(one)] if isinstance(value, (tuple, list)) else [value]


@pytest.mark.timeout(900)  # hundreds of programs, compiled by the CPU
@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name: str) -> None:
    """Built by its own code, with random weights and the statistics of some noise."""
    models = pytest.importorskip("torchvision.models", reason="make check-torch has it")
    net = getattr(models, name)(weights=None)
    size = TORCHVISION[name]
    for _ in range(2):
        net.train()(torch.randn(8, 3, size + 32, size + 33))
    x = torch.randn(2, 3, size, size + 1)
    model = like(net, x, backends=BACKENDS)
    assert model.inputs[0].shape == ("N", 3, size, size + 1) and model.name == type(net).__name__
    check(model, net, torch.randn(3, 3, size, size + 1))
    again = {key: tensor for key, tensor in net.state_dict().items() if "num_batches" not in key}
    assert model.state_dict().keys() == again.keys()
    other = getattr(models, name)(weights=None).eval()
    assert model.load_state_dict(other.state_dict()) == ([], [])
    check(model, other, x)


class Several(nn.Module):
    """Of two inputs and three results, by keys and places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(5, 4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("scale", torch.arange(1.0, 5.0))

    def forward(self, image: Any, words: Any) -> Any:
        both = self.drop(self.first(image)) + self.second(words)
        return {"sum": both * self.scale, "parts": (both.relu(), both.argmax(1))}


def test_several_inputs_and_outputs() -> None:
    net = Several()
    model = like(net, torch.randn(1, 3), torch.randn(1, 5), backends=BACKENDS)
    check(model, net, torch.randn(4, 3), torch.randn(4, 5), backends=BACKENDS)
    assert [(i.name, i.shape) for i in model.inputs] == [("image", ("N", 3)), ("words", ("N", 5))]
    assert model.outputs == ("sum", "parts_0", "parts_1")
    assert set(model.state_dict()) >= {"first.weight", "second.bias", "scale"}


def test_modes_are_as_they_were() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 2)).train()
    net[0].eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    Model.from_torch(net, torch.randn(4, 3))
    with pytest.raises(ModelError):
        Model.from_torch(net, torch.randn(4, 5))
    assert [part.training for part in net.modules()] == [True, False, True, True]
    assert all(torch.equal(net.state_dict()[name], before[name]) for name in before)
    assert all(parameter.requires_grad for parameter in net.parameters())


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_other_floats_are_float32(kind: str) -> None:
    net = nn.Linear(3, 2).to(getattr(torch, kind))
    x = torch.randn(2, 3).to(getattr(torch, kind))
    model = Model.from_torch(net, x)
    assert next(net.parameters()).dtype is getattr(torch, kind)
    check(model, nn.Linear.float(net), x.float())


def test_a_batch_that_cannot_be_open() -> None:
    class Mixed(nn.Module):
        def __init__(self, batch: int) -> None:
            super().__init__()
            self.over = nn.Linear(batch, 4)

        def forward(self, x: Any) -> Any:
            return self.over(x.t())

    for batch in (1, 2):
        assert like(Mixed(batch), torch.randn(batch, 3)).inputs[0].shape == (batch, 3)
    assert like(nn.ReLU(), torch.randn(2, 3), dynamic=False).inputs[0].shape == (2, 3)
    with pytest.raises(ModelError, match="dynamic must be a bool, got 'yes'"):
        Model.from_torch(nn.ReLU(), torch.randn(2, 3), dynamic="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "way", [lambda n: n > 3, lambda n: n != 4, lambda n: n % 2 == 0], ids=["more", "other", "even"]
)
def test_ways_that_a_batch_decides_keep_it_fixed(way: Any) -> None:
    class Ways(nn.Module):
        def forward(self, x: Any) -> Any:
            return 2 * x if way(x.shape[0]) else -x

    for batch in (2, 5):
        assert like(Ways(), torch.randn(batch, 3)).inputs[0].shape == (batch, 3)


def test_sizes_that_must_be_the_same_are_open() -> None:
    module = nn.Bilinear(3, 4, 2)
    model = like(module, torch.randn(2, 3), torch.randn(2, 4))
    assert [info.shape for info in model.inputs] == [("N", 3), ("N", 4)]
    check(model, module, torch.randn(5, 3), torch.randn(5, 4))


def test_states_whose_first_size_is_no_batch() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 4)
            self.states = nn.GRU(4, 5, batch_first=True)

        def forward(self, tokens: Any, h: Any) -> Any:
            y, last = self.states(self.words(tokens), h)
            return y, last

    tokens = torch.randint(0, 9, (2, 3))
    model = like(Words(), tokens, torch.randn(1, 2, 5), backends=BACKENDS)
    assert model.outputs == ("output_0", "output_1")


class Inverse(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.inv(x)


class Branch(nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Noise(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + torch.rand_like(x)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.seen.add_(1)
        return x + self.seen


@pytest.mark.parametrize(
    ("module", "example", "says"),
    [
        (Inverse(), torch.eye(3), "Inverse: .*exporter does not have aten.linalg_inv_ex.default"),
        (Branch(), torch.ones(3), "Branch: PyTorch does not export it to ONNX: .*data-dependent"),
        (Noise(), torch.ones(3), "Noise: aten.rand_like.default draws random numbers"),
        (Counts(), torch.ones(3), "Counts: it changes seen in place"),
        (nn.Linear(3, 2), torch.ones(2, 4), "Linear: PyTorch does not export it to ONNX: "),
        (nn.Linear, torch.ones(2, 3), "from_torch takes a torch.nn.Module, got <class"),
        (lambda x: x, torch.ones(2, 3), "from_torch takes a torch.nn.Module, got <function"),
        (nn.Linear(3, 2), np.ones((2, 3)), "takes an example of each input, .* got array"),
        (nn.Linear(3, 2), (), "takes an example of each input, got none"),
        (nn.Linear(3, 2), (torch.ones(2, 3),) * 2, "Linear: PyTorch does not export it"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_refused(module: Any, example: Any, says: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ModelError) as caught:
            Model.from_torch(module, example)
    assert re.search(says, str(caught.value)), caught.value
    assert "\n" not in str(caught.value)


def test_onnxscript_that_is_missing_is_hinted_at(monkeypatch) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "onnxscript"] or ["onnxscript"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModelError, match=r"needs onnxscript.*: .*glnn\[torch\]"):
        Model.from_torch(nn.ReLU(), torch.ones(2, 3))


def test_saved_and_loaded(tmp_path) -> None:
    import glnn

    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    x = torch.randn(2, 1, 6, 5)
    model = like(net, x, name="net")
    model.save(tmp_path / "net.onnx")
    check(glnn.load(tmp_path / "net.onnx"), net, x)


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_cnn_is_saved_as_layers(tmp_path, dynamic: bool) -> None:
    """A .json file, whose layers have PyTorch's names."""
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU6(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)),
    ).eval()
    x = torch.rand(1, 1, 12, 12)
    model = Model.from_torch(net, x, dynamic=dynamic)
    expected = sum(t.numel() for t in net.state_dict().values() if t.is_floating_point())
    assert f" {expected} parameters" in str(model).splitlines()[0]
    model.save(tmp_path / "net.json")
    saved = load(tmp_path / "net.json")
    assert isinstance(saved, Model)
    saved.load_state_dict(net.state_dict())
    assert relative_error(saved(x.numpy(), "cpu"), net(x).double().numpy()) < 1e-6
