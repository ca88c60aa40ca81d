"""The file of a checkpoint: written whole, read without trust."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest

from glnn.errors import ModelError
from glnn.training.checkpoint import (
    EpochBatches,
    Position,
    Setup,
    Snapshot,
    differences,
    read,
    write,
)
from glnn.training.history import History, Row

SETUP = Setup("net", "MSELoss()", "SGD(lr=0.1)", "", "", 3, "0.1.0", "cpu", "")


@pytest.fixture
def snapshot(rng) -> Snapshot:
    states = {"a.weight": rng((3, 2)), "a.weight/exp_avg": rng((3, 2)), "file": rng((1,))}
    return Snapshot(
        states | {"step": np.array(7, np.int32)},
        Position(2, 32, 1, 0.25),
        EpochBatches(100, 16, 2, False),
        SETUP,
        {"training 16": ("matmul/gemm_tiled", "pointwise")},
        History((Row(1, 4, 0.5, None, None, None, 0.1, 0.25),)),
        ({}, {"best": np.array(0.5)}),
    )


def test_comes_back_as_it_was(snapshot, tmp_path) -> None:
    write(tmp_path / "c.npz", snapshot)
    found = read(tmp_path / "c.npz")
    for name in ("position", "batches", "setup", "kernels", "history"):
        assert getattr(found, name) == getattr(snapshot, name)
    assert found.states.keys() == snapshot.states.keys()
    for name, array in snapshot.states.items():
        assert found.states[name].tobytes() == array.tobytes()
        assert found.states[name].dtype == array.dtype
    assert [kept.keys() for kept in found.callbacks] == [set(), {"best"}]
    assert [path.name for path in tmp_path.iterdir()] == ["c.npz"]


def test_is_an_archive_that_numpy_reads(snapshot, tmp_path) -> None:
    write(tmp_path / "c.npz", snapshot)
    with np.load(tmp_path / "c.npz", allow_pickle=False) as archive:
        assert np.array_equal(archive["state/a.weight"], snapshot.states["a.weight"])
        assert json.loads(str(archive["about"]))["setup"]["optimizer"] == "SGD(lr=0.1)"


def test_what_cannot_be_written_leaves_the_old_one(snapshot, tmp_path) -> None:
    path = tmp_path / "c.npz"
    write(path, snapshot)
    before = path.read_bytes()
    with pytest.raises(ModelError, match=r"c\.npz: cannot be written"):
        write(path, Snapshot({"\ud800": np.zeros(1)}, Position(), EpochBatches(), SETUP))
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ModelError, match="cannot be written: is a folder"):
        write(tmp_path, snapshot)


def test_every_cut_is_refused(snapshot, tmp_path) -> None:
    write(tmp_path / "c.npz", snapshot)
    content = (tmp_path / "c.npz").read_bytes()
    for length in (0, 1, 30, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.npz").write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"cut\.npz: "):
            read(tmp_path / "cut.npz")


def test_other_files_are_refused(tmp_path) -> None:
    path = tmp_path / "c.npz"
    with pytest.raises(ModelError, match="no such file"):
        read(path)
    np.savez(path, weight=np.zeros(3))
    with pytest.raises(ModelError, match="is no checkpoint of glnn's"):
        read(path)
    np.savez(path, about=np.array([{"format": 1}], object))
    with pytest.raises(ModelError, match="pickled objects, which are refused"):
        read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("about.txt", "{}")
    with pytest.raises(ModelError, match="is not an array"):
        read(path)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"place": {"epoch": -1, "sample": 0, "began": 0, "seconds": 0.0}},
        {"place": {"epoch": 0, "sample": 0, "began": 0, "seconds": float("nan")}},
        {"place": []},
        {"batches": {"count": 1}},
        {"setup": {**SETUP.__dict__, "seed": True}},
        {"setup": None},
        {"kernels": {"training": [1]}},
        {"kernels": ["a"]},
        {"history": [{}]},
        {"callbacks": -1},
        {"callbacks": 10**9},
    ],
)
def test_what_it_says_of_itself_is_checked(snapshot, tmp_path, change) -> None:
    path = tmp_path / "c.npz"
    write(path, snapshot)
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    about = json.loads(str(arrays["about"])) | change
    np.savez(path, **{**arrays, "about": np.array(json.dumps(about))})
    with pytest.raises(ModelError, match=r"c\.npz: "):
        read(path)


def test_differences_are_named() -> None:
    ones = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(1, np.float32)}
    assert differences(ones, dict(ones)) == []
    others = {"a": np.zeros((3, 2), np.float32), "c": np.zeros(1, np.float32)}
    assert differences(ones, others) == [
        "'b' is missing",
        "'c' is unknown",
        "'a' is float32 (3, 2), not float32 (2, 3)",
    ]
    many = {str(i): np.zeros(1) for i in range(9)}
    assert differences(many, {})[-1] == "and 6 more"
