"""Files of weights: what others read of ours, what we read of theirs, and files made to harm."""

from __future__ import annotations

import json
import pickle
import random
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glnn
from glnn.errors import GlnnError, ModelError
from glnn.layers import Linear
from glnn.model import Model
from tests.tensors import Tensor

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3) - np.float32(2.5)
BIAS = np.array([10, -20], np.float16)
ARRAYS: dict[str, np.ndarray] = {
    "fc.bias": BIAS,
    "fc.weight": WEIGHT,
    "odd": np.array([True, False, True]),
    "count": np.array(7),
    "bytes": np.arange(5, dtype=np.uint8)[::2],
    "wide": np.asfortranarray(np.array([[1.5, 2.5], [3.5, 4.5]])),
    "none": np.zeros((0, 3), np.int16),
    "ä/ö\n'": np.array([np.nan, np.inf, -0.0], np.float32),
}


def equal(found: dict[str, Any], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(
        (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        and found[name].tobytes() == np.ascontiguousarray(array).tobytes()
        for name, array in expected.items()
    )


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors", "W.SafeTensors"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    arrays = {key: ARRAYS[key] for key in ARRAYS if "\n" not in key or "npz" not in name}
    glnn.save_weights(arrays, tmp_path / name)
    assert equal(glnn.load_weights(tmp_path / name), arrays)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_model_s_weights_go_by_every_file(tmp_path: Path) -> None:
    net = Model.sequential({"fc": Linear(3, 2)}, (3,))
    net["fc"].weight, net["fc"].bias = WEIGHT, BIAS
    for name in ("w.npz", "w.safetensors"):
        glnn.save_weights(net.state_dict(), tmp_path / name)
        other = Model.sequential({"fc": Linear(3, 2)}, (3,))
        assert other.load_state_dict(tmp_path / name) == ([], [])
        assert (other["fc"].weight == WEIGHT).all() and (other["fc"].bias == BIAS).all()


def test_safetensors_by_its_own_package(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    glnn.save_weights(ARRAYS, tmp_path / "ours.safetensors")
    assert equal(numpy.load_file(tmp_path / "ours.safetensors"), ARRAYS)
    plain = {name: np.array(array, order="C") for name, array in ARRAYS.items()}
    numpy.save_file(plain, tmp_path / "theirs.safetensors", {"made by": "safetensors"})
    assert equal(glnn.load_weights(tmp_path / "theirs.safetensors"), ARRAYS)


def test_npz_by_numpy(tmp_path: Path) -> None:
    arrays = {name: array for name, array in ARRAYS.items() if name.isidentifier()}
    np.savez_compressed(tmp_path / "theirs.npz", **arrays)
    assert equal(glnn.load_weights(tmp_path / "theirs.npz"), arrays)
    glnn.save_weights(ARRAYS, tmp_path / "ours.npz")
    with np.load(tmp_path / "ours.npz") as archive:
        assert (archive["fc.weight"] == WEIGHT).all()


def test_tensors_are_written(tmp_path: Path) -> None:
    given = {"w": Tensor(WEIGHT, "torch.bfloat16"), "b": Tensor(BIAS, "torch.float16")}
    for name in ("w.npz", "w.safetensors"):
        glnn.save_weights({"epoch": 3, "state_dict": given}, tmp_path / name)
        assert equal(glnn.load_weights(tmp_path / name), {"w": WEIGHT, "b": BIAS})


def safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A file that says what it likes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    count = len(text) if length is None else length
    path.write_bytes(count.to_bytes(8, "little") + text + data)
    return path


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4), **more: Any) -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def test_bfloat16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    expected = np.array([[1.0, -2.5], [np.inf, 3.0e38]], np.float32)
    halves = np.array([[0x3F80, 0xC020], [0x7F80, 0x7F62]], "<u2")  # by its definition
    path = safetensors(
        tmp_path / "w.safetensors", {"x": entry("BF16", (2, 2), (0, 8))}, halves.tobytes()
    )
    found = glnn.load_weights(path)["x"]
    assert found.dtype == np.float32
    assert np.allclose(found, expected, rtol=2**-8)


@pytest.mark.parametrize(
    ("header", "data", "says"),
    [
        ({"x": entry(shape=[2])}, b"1234", r"'x' of shape \(2,\) takes 8 bytes, it has 4"),
        ({"x": entry(shape=[1 << 62, 1 << 62])}, b"1234", "takes .* bytes, it has 4"),
        ({"x": entry(offsets=[0, 4])}, b"123", "its tensors take 4 bytes, it has 3"),
        ({"x": entry(offsets=[0, 4])}, b"12345", "its tensors take 4 bytes, it has 5"),
        ({"x": entry(offsets=[4, 8])}, b"12345678", "'x' begins at 4, not at 0"),
        ({"x": entry(), "y": entry()}, b"1234", "'y' begins at 0, not at 4"),
        ({"x": entry(offsets=[4, 0], shape=[0])}, b"1234", "takes 0 bytes, it has -4"),
        ({"x": entry(offsets=[-4, 0])}, b"1234", "'x' has no sizes, or no two offsets"),
        ({"x": entry(offsets=[0, 4.0])}, b"1234", "'x' has no sizes, or no two offsets"),
        ({"x": entry(shape=[True])}, b"1234", "'x' has no sizes, or no two offsets"),
        ({"x": entry(shape=[10**19] * 100000)}, b"1234", "'x' has 100000 dimensions"),
        ({"x": entry(shape="1")}, b"1234", "'x' has no sizes, or no two offsets"),
        ({"x": entry(dtype="F8_E4M3")}, b"1234", "'x' is of 'F8_E4M3'; known are F64, F32"),
        ({"x": entry(dtype=["F32"])}, b"1234", r"'x' is of \['F32'\]; known are"),
        ({"x": entry(more=1)}, b"1234", "'x' must have dtype, shape and data_offsets"),
        ({"x": [1]}, b"", "'x' must have dtype, shape and data_offsets"),
        ([1], b"", "expected a JSON object, got list"),
        (b'{"x": {}, "x": {}}', b"", "the key 'x' occurs twice"),
        (b"{" * 100000, b"", "not valid JSON"),
        (b"", b"", "not valid JSON"),
        (b'{"x": ' + b"9" * 5000 + b"}", b"", "not valid JSON"),
        (b"\xff\xfe\xfd", b"", "not valid JSON"),
    ],
)
def test_safetensors_that_lie(tmp_path: Path, header: Any, data: bytes, says: str) -> None:
    path = safetensors(tmp_path / "w.safetensors", header, data)
    with pytest.raises(ModelError, match=f"w.safetensors: .*{says}"):
        glnn.load_weights(path)


def test_headers_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    for content in (b"", b"1234567", b"\0" * 7 + b"\x80", (3).to_bytes(8, "little") + b"{}"):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"it is cut short, or is no \.safetensors file"):
            glnn.load_weights(path)
    np.savez(tmp_path / "w.npz", w=np.ones(3))
    np.save(tmp_path / "w.npy", np.ones(3))
    for content, says in (
        ((tmp_path / "w.npz").read_bytes(), r"begins as a \.pt, \.npz or \.zip file does"),
        ((tmp_path / "w.npy").read_bytes(), r"begins as an \.npy file does"),
        (pickle.dumps({"w": np.ones(3)}), r"begins as a \.pt or \.pkl file does, as a pickle"),
    ):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=says):
            glnn.load_weights(path)
    with path.open("wb") as stream:  # a hole of 20 MB
        stream.write((20 << 20).to_bytes(8, "little"))
        stream.truncate((20 << 20) + 8)
    with pytest.raises(ModelError, match="its header has 20971520 bytes, more than 16777216"):
        glnn.load_weights(path)
    path.unlink()
    with pytest.raises(ModelError, match=r"w\.safetensors: no such file"):
        glnn.load_weights(path)
    path.mkdir()
    with pytest.raises(ModelError, match=r"w\.safetensors: is not a file"):
        glnn.load_weights(path)


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_damage_gives_weights_or_one_of_our_errors(tmp_path: Path, ending: str) -> None:
    """And a model that is given the file has all of it, or is as it was."""
    whole = tmp_path / f"whole.{ending}"
    net = Model.sequential({"fc": Linear(3, 2)}, (3,))
    glnn.save_weights(net.state_dict(), whole)
    content, path, chance = whole.read_bytes(), tmp_path / f"damaged.{ending}", random.Random(1)
    refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        for _ in range(chance.randrange(1, 4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        before = {name: array.copy() for name, array in net.state_dict().items()}
        try:
            net.load_state_dict(path)
        except GlnnError as error:
            refused += 1
            assert str(error).startswith(str(path))
            assert all((net.state_dict()[name] == before[name]).all() for name in before)
            continue
        net.load_state_dict(whole)
    assert refused > 40


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", **{"fc.weight": np.array([{"a": 1}], object)})
    with pytest.raises(ModelError, match=r"'fc\.weight' holds pickled objects, which are refused"):
        glnn.load_weights(tmp_path / "w.npz")
    np.savez(tmp_path / "w.npz", **{"fc.weight": np.array(["a"])})
    with pytest.raises(ModelError, match=r"'fc\.weight' must be of numbers, got <U1"):
        glnn.load_weights(tmp_path / "w.npz")
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("data.pkl", pickle.dumps([1]))
    with pytest.raises(ModelError, match=r"'data\.pkl' is not an array"):
        glnn.load_weights(tmp_path / "w.npz")


def test_pytorch_that_is_missing_is_hinted_at(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("glnn.torch")]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "w.pt").write_bytes(b"")
    hint = "PyTorch is needed, and torch is not installed: pip install torch, or take a .safe"
    with pytest.raises(ModelError, match=rf"w.pt: to read it {hint}"):
        glnn.load_weights(tmp_path / "w.pt")
    with pytest.raises(ModelError, match=rf"w.pth: to write it {hint}"):
        glnn.save_weights({"a": WEIGHT}, tmp_path / "w.pth")
    with pytest.raises(
        ModelError, match=r"from_torch needs torch, which is not installed: .* pip in"
    ):
        Model.from_torch(None, None)


@pytest.mark.parametrize(
    ("given", "path", "says"),
    [
        ({"a": [1]}, "w.npz", "w.npz: 'a' must be an array or a tensor, got list"),
        ({"a": np.ma.array([1.0, 2.0], mask=[0, 1])}, "w.npz", "w.npz: 'a' has masked values"),
        ({"a": np.array([{}])}, "w.npz", "'a' must be an array or a tensor, got object array"),
        ({"a": Tensor(WEIGHT, broken="no")}, "w.npz", "w.npz: 'a' is no plain tensor"),
        ({"a": WEIGHT.astype(complex)}, "w.safetensors", "cannot hold 'a' of complex128"),
        ({"__metadata__": WEIGHT}, "w.safetensors", "cannot hold '__metadata__' of float32"),
        ({"\ud800": WEIGHT}, "w.safetensors", "w.safetensors: cannot be written: "),
        ({"a": WEIGHT}, "gone/w.safetensors", "cannot be written: No such file or directory"),
        ({"a": WEIGHT}, "gone/w.npz", "cannot be written: No such file or directory"),
        ({"a": WEIGHT}, "w.txt", "a file of weights ends with .safetensors, .npz, .pt, .pth"),
        (WEIGHT, "w.npz", "state_dict: expected arrays by their names, got ndarray"),
    ],
)
def test_what_is_not_written(tmp_path: Path, given: Any, path: str, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        glnn.save_weights(given, tmp_path / path)
    assert says in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "w.safetensors"
    glnn.save_weights({"a": WEIGHT}, path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "ascontiguousarray", full)
    with pytest.raises(ModelError, match="cannot be written: No space left on device"):
        glnn.save_weights({"a": 2 * WEIGHT}, path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_weights_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"w.pt: holds weights alone: .*load_state_dict\(path\)"):
        glnn.load(tmp_path / "w.pt")
