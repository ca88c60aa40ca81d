"""`glnn run --dump`: tensors inside a model, as .npz files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glnn.backends import NAMES
from tests.cli.conftest import Glnn

AFFINE = [[2.5, 1.0], [4.5, 7.0]]  # of `small` on `samples`
X = [[2, 0, 0], [5, 0, 1]]


@pytest.mark.parametrize("backend", NAMES)
def test_a_file(cli: Glnn, small: Path, samples: Path, tmp_path: Path, backend: str) -> None:
    target = tmp_path / "t.npz"
    found = cli("run", small, samples, "--backend", backend, "--dump", target, "--json").json
    with np.load(target) as archive:
        assert set(archive.files) == {"input", "affine: matmul", "affine", "relu"}
        np.testing.assert_allclose(archive["input"], X)
        np.testing.assert_allclose(archive["affine"], AFFINE, rtol=1e-6)
        np.testing.assert_allclose(archive["affine: matmul"], np.subtract(AFFINE, [0.5, -3]))
    assert found["predictions"] == [0, 1]
    assert found["dump"]["files"] == [str(target)] and found["dump"]["bytes"] == 4 * (6 + 3 * 4)
    assert {"name": "relu", "shape": [2, 2], "dtype": "float32", "bytes": 16} in (
        found["dump"]["tensors"]
    )


def test_a_folder_has_a_file_for_each_run(
    cli: Glnn, small: Path, samples: Path, tmp_path: Path
) -> None:
    target = tmp_path / "tensors"
    asked = ("--batch", 1, "--dump", target, "--tensor", "aff*", "--tensor", "input")
    shown = cli("run", small, samples, *asked)
    assert (shown.code, shown.err) == (0, "")
    assert f"dumped to 2 files in {target}, 56 B" in shown.out and "affine: matmul" in shown.out
    assert [path.name for path in sorted(target.iterdir())] == ["run-0000.npz", "run-0001.npz"]
    for i, path in enumerate(sorted(target.iterdir())):
        with np.load(path) as archive:
            assert archive.files == ["affine: matmul", "affine", "input"]
            np.testing.assert_allclose(archive["affine"], AFFINE[i : i + 1], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--dump gone/t.npz", "--dump: cannot write to gone/t.npz: No such file or directory"),
        ("--dump /dev/null", "--dump: cannot write to /dev/null: "),
        ("--dump gone/folder", "--dump: cannot write to gone/folder: No such file"),
        ("--dump small.json/t.npz", "--dump: cannot write to small.json/t.npz: Not a directory"),
        ("--dump t.npz --batch 1", "t.npz holds one run, these are 2: give a folder, or a --batch"),
        ("--dump t.npz --tensor gone", "no tensor or layer of small is called 'gone': it has "),
        ("--tensor relu", "--tensor says what --dump writes: --dump is missing"),
    ],
)
def test_refused_before_anything_runs(
    cli: Glnn, small: Path, samples: Path, monkeypatch, arguments: str, says: str
) -> None:
    monkeypatch.chdir(small.parent)
    before = sorted(small.parent.iterdir())
    assert says in cli("run", small, samples, *arguments.split(), "--json").refusal
    assert sorted(small.parent.iterdir()) == before
