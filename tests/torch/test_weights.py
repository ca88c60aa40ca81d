"""PyTorch's own state dicts and files, and layers with a trained network's weights."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch: make check-torch has it")
nn = torch.nn

import glnn  # noqa: E402
from glnn import Model, layers  # noqa: E402
from glnn.errors import ModelError  # noqa: E402
from glnn.validation.comparison import relative_error  # noqa: E402

FILES = ("w.safetensors", "w.npz", "w.pt", "w.pth")


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def parts(of: Any) -> Any:
    """A small CNN of the layers in `of`, PyTorch's or glnn's."""
    return OrderedDict(
        conv1=of.Conv2d(1, 8, 3, padding=1, bias=False),
        bn1=of.BatchNorm2d(8),
        relu1=of.ReLU(inplace=True),
        pool1=of.MaxPool2d(2),
        conv2=of.Conv2d(8, 16, 3, groups=2),
        relu2=of.PReLU(16),
        pool2=of.AdaptiveAvgPool2d(1),
        flat=of.Flatten(),
        drop=of.Dropout(0.5),
        fc=of.Linear(16, 3),
    )


def trained() -> Any:
    """The CNN in PyTorch, after some steps that told three kinds of stripes apart."""
    net = nn.Sequential(parts(nn))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(20):
        x, kinds = stripes(32)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net.train()(x), kinds).backward()
        optimizer.step()
    return net.eval()


def stripes(count: int) -> Any:
    """Images of (count, 1, 12, 12): even, across or along; and which."""
    kinds = torch.randint(0, 3, (count,))
    waves = torch.arange(12.0).sin().mul(2)
    kept = torch.stack([torch.zeros(12, 12), waves[:, None].expand(12, 12), waves.expand(12, 12)])
    return kept[kinds][:, None] + 0.2 * torch.randn(count, 1, 12, 12), kinds


def scores(net: Any, x: Any) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(net(x).double().numpy())


def test_a_trained_cnn_as_layers(tmp_path: Path) -> None:
    net, (x, kinds) = trained(), stripes(50)
    expected = scores(net, x)
    assert (expected.argmax(1) == kinds.numpy()).mean() > 0.9
    ours = Model.sequential(parts(layers), (1, 12, 12))
    sessions = [glnn.InferenceSession(ours, backend) for backend in ("compute", "feedback")]
    assert ours.load_state_dict(net.state_dict()) == ([], [])
    for session in sessions:
        (found,) = session.run(None, {"input": x.numpy()})
        assert relative_error(found, expected) < 1e-5
    by_number = nn.Sequential(*net)
    other = Model.sequential(list(parts(layers).values()), (1, 12, 12))
    other.load_state_dict(nn.DataParallel(by_number).state_dict())
    assert relative_error(other(x.numpy(), "cpu"), expected) < 1e-5
    assert by_number.state_dict().keys() > {"0.weight", "1.num_batches_tracked", "9.bias"}


@pytest.mark.parametrize("name", FILES)
def test_there_and_back(tmp_path: Path, name: str) -> None:
    """PyTorch's weights by a file to glnn, and glnn's back: PyTorch takes them, strictly."""
    net, path = trained(), tmp_path / name
    glnn.save_weights(net.state_dict(), path)
    ours = Model.sequential(parts(layers), (1, 12, 12))
    assert ours.load_state_dict(path) == ([], [])
    glnn.save_weights(ours.state_dict(), path)
    again = nn.Sequential(parts(nn)).eval()
    again.load_state_dict({n: torch.tensor(a) for n, a in glnn.load_weights(path).items()})
    for key, tensor in net.state_dict().items():
        assert "num_batches" in key or torch.equal(again.state_dict()[key], tensor), key
    assert [one.name for one in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float64", "float8_e4m3fn"])
def test_types(tmp_path: Path, kind: str) -> None:
    tensor = torch.randn(3, 4).to(getattr(torch, kind))
    expected = tensor.float().numpy()
    layer = layers.Linear(4, 3, bias=False)
    layer.weight = nn.Parameter(tensor.clone())
    assert np.array_equal(layer.weight, expected)
    for name in FILES:
        glnn.save_weights({"x": tensor}, tmp_path / name)
        assert np.array_equal(glnn.load_weights(tmp_path / name)["x"].astype("f4"), expected)
    if not kind.startswith("float8"):
        torch.save({"x": tensor}, tmp_path / "theirs.pt")
        assert np.array_equal(glnn.load_weights(tmp_path / "theirs.pt")["x"].astype("f4"), expected)
        save = pytest.importorskip("safetensors.torch").save_file
        save({"x": tensor}, tmp_path / "theirs.safetensors")
        found = glnn.load_weights(tmp_path / "theirs.safetensors")["x"]
        assert np.array_equal(found.astype("f4"), expected)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 3).t(),
        torch.randn(1, 4).expand(3, 4),
        torch.randn(3, 4, dtype=torch.complex64).conj().real,
        torch.zeros(3, 4, dtype=torch.complex64).conj().imag,
        torch.randn(6, 8)[::2, ::2],
    ],
)
def test_views(tensor: Any) -> None:
    layer = layers.Linear(4, 3, bias=False)
    layer.weight = tensor
    assert np.array_equal(layer.weight, tensor.resolve_neg().numpy())


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (torch.zeros(2, 3, device="meta"), "is no plain tensor .torch.float32 on meta"),
        (torch.zeros(2, 3).to_sparse(), "is no plain tensor "),
        (torch.zeros(2, 3, dtype=torch.complex64), "got complex64 array"),
    ],
)
def test_what_is_refused(tensor: Any, says: str) -> None:
    net = Model.sequential({"fc": layers.Linear(3, 2)}, (3,))
    with pytest.raises(ModelError, match=says):
        net.load_state_dict({"fc.weight": tensor}, strict=False)


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_checkpoints(tmp_path: Path, key: str) -> None:
    state = nn.Linear(3, 2).state_dict()
    torch.save({"epoch": 3, key: state, "optimizer": {"lr": 0.1}}, tmp_path / "last.pt")
    found = glnn.load_weights(tmp_path / "last.pt")
    assert {n: a.tolist() for n, a in found.items()} == {n: t.tolist() for n, t in state.items()}


class Harm:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("harm"),)


def test_nothing_in_a_file_is_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "w.pt"
    for content in (Harm(), {"state_dict": Harm()}, nn.Linear(2, 2)):
        torch.save(content, path)
        with pytest.raises(ModelError, match=r"w.pt: has more than tensors, which is not read"):
            glnn.load_weights(path)
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(ModelError, match=r"w.pt: "):
            glnn.load_weights(path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([torch.ones(2)], "expected arrays by their names, got list"),
        ({"a": torch.ones(2), "epoch": 3}, "'epoch' must be an array or a tensor, got int"),
        ({1: torch.ones(2)}, "expected arrays by their names, got 1 as a name"),
        ({"a": torch.ones(1).expand(1 << 40)}, "would inflate to 4398046511104"),
        ({"a": torch.ones(2).to_sparse()}, "'a' is no plain tensor"),
    ],
)
def test_files_of_something_else(tmp_path: Path, content: Any, says: str) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(ModelError, match=f"w.pt: .*{says}"):
        glnn.load_weights(tmp_path / "w.pt")


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save(nn.Linear(3, 2).state_dict(), path)
    content = path.read_bytes()
    for damaged in (b"", b"PK", content[:100], content[:-30], b"x" * 500, content[::-1]):
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match=r"w.pt: .") as caught:
            glnn.load_weights(path)
        assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(ModelError, match=r"w.pt: no such file"):
        glnn.load_weights(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_files_that_are_cut_short(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "w.pt"
    torch.save(nn.Linear(99, 99).state_dict(), path, _use_new_zipfile_serialization=zipped)
    content = path.read_bytes()
    for length in (0, 1, 3, 10, 1000, 20000, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"w\.pt: it is cut short"):
            glnn.load_weights(path)


def test_torchscript_is_refused_by_its_name(tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r"w\.pt: it is TorchScript") as caught:
        glnn.load_weights(tmp_path / "w.pt")
    assert "weights_only" not in str(caught.value)


def test_a_checkpoint_by_another_name_in_a_file(tmp_path: Path) -> None:
    torch.save({"net": nn.Linear(2, 2).state_dict(), "epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(ModelError, match=r'w\.pt: .* give torch\.load\(path\)\["net"\]'):
        glnn.load_weights(tmp_path / "w.pt")


def test_attention() -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    layer = layers.MultiheadAttention(8, 2, batch_first=True)
    node = glnn.model.Node("attn", layer, ("x", "x", "x"), "y")
    ours = Model((node,), (glnn.model.TensorInfo("x", ("N", 5, 8)),), ("y",))
    state = {f"attn.{name}": tensor for name, tensor in theirs.state_dict().items()}
    assert ours.load_state_dict(state) == ([], []) and ours.state_dict().keys() == state.keys()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = theirs(x, x, x)[0].double().numpy()
    assert relative_error(ours(x.numpy(), "cpu"), expected) < 1e-5
