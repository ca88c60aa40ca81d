"""Folders of class folders: which pictures are of which class, and what is held out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from glnn.core.types import Array
from glnn.errors import GlnnError, ModelError, ShapeError
from glnn.training import picture_folder
from glnn.training.dataset import Dataset, read_dataset
from glnn.training.picture_folder import PictureFolder

Image = pytest.importorskip("PIL.Image")


def put(folder: Path, counts: dict[str, int]) -> Path:
    """Pictures of 2 x 2 by class, each of a grey value of its own."""
    grey = 0
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            Image.new("L", (2, 2), grey).save(folder / name / f"{i}.png")
            grey += 1
    return folder


def read(path: Path) -> Array:
    try:
        return np.asarray(Image.open(path), np.float32)[None, None]
    except OSError:
        raise ModelError(f"{path}: is no picture") from None


def find(path: Path, *args: object) -> PictureFolder:
    found = PictureFolder.find(path, *args)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = put(tmp_path, {"owl": 1, "cat": 2, "dog": 3})
    (folder / "cat" / "deeper").mkdir()
    Image.new("L", (2, 2), 99).save(folder / "cat" / "deeper" / "x.jpg")
    (folder / "cat" / "notes.txt").write_text("x")
    (folder / ".hidden").mkdir()
    found = find(folder)
    assert found.classes == ("cat", "dog", "owl") and not found.validation
    data, held = found.read(read)
    assert held is None and data.classes == found.classes
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1, 2] and data.x.shape == (7, 1, 2, 2)
    assert data.x[[0, 1, 3, 4, 5, 6], 0, 0, 0].tolist() == [1, 2, 3, 4, 5, 0]


def test_numbers_by_their_size_and_names_that_are_known(tmp_path: Path) -> None:
    put(tmp_path / "n", {"10": 1, "9": 1, "1": 1})
    assert find(tmp_path / "n").classes == ("1", "9", "10")
    put(tmp_path / "a", {"cat": 1, "owl": 1})
    known = {0: "owl", 1: "dog", 2: "cat"}
    found = find(tmp_path / "a", 3, known)
    assert found.classes == ("owl", "dog", "cat")
    assert [number for _, number in found.training] == [2, 0]
    assert find(tmp_path / "a", 3, {0: "x", 1: "y"}).classes == ("cat", "owl")


@pytest.mark.parametrize("apart", ["val", "test"])
def test_what_is_held_apart(tmp_path: Path, apart: str) -> None:
    put(tmp_path / "train", {"a": 2, "b": 3})
    put(tmp_path / apart, {"b": 1})
    data, held = find(tmp_path).read(read)
    assert held is not None and data.y.tolist() == [0, 0, 1, 1, 1] and held.y.tolist() == [1]
    put(tmp_path / apart, {"c": 1})
    with pytest.raises(ModelError, match="there is no class 'c' to train with"):
        PictureFolder.find(tmp_path)


def test_what_is_no_such_folder(tmp_path: Path) -> None:
    assert PictureFolder.find(tmp_path) is None and PictureFolder.find(tmp_path / "none") is None
    with pytest.raises(ModelError, match="or one with a folder of pictures for each class"):
        read_dataset(tmp_path / "none")
    put(tmp_path, {"a": 1})
    with pytest.raises(ModelError, match="expected a folder for each class, got 'a' alone"):
        PictureFolder.find(tmp_path)
    put(tmp_path, {"b": 0})
    with pytest.raises(ModelError, match="b: there are no pictures in it"):
        PictureFolder.find(tmp_path)
    put(tmp_path, {"b": 1, "c": 1})
    with pytest.raises(ModelError, match="as the model gives, 2, got 3: a, b, c"):
        PictureFolder.find(tmp_path, 2)


def test_pictures_that_do_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {"a": 3, "b": 2})
    (tmp_path / "a" / "1.png").write_bytes(b"nothing")
    found = find(tmp_path)
    data, _ = found.read(read)
    assert data.y.tolist() == [0, 0, 1, 1] and data.x[:, 0, 0, 0].tolist() == [0, 2, 3, 4]
    assert [one["in"] for one in found.failed] == [str(tmp_path / "a" / "1.png")]
    Image.new("L", (3, 2)).save(tmp_path / "b" / "1.png")
    with pytest.raises(ShapeError, match=r"1\.png: expected samples of one shape, got \(1, 2, 2\)"):
        find(tmp_path).read(read)
    monkeypatch.setattr(picture_folder, "memory_limit", lambda: 60)
    with pytest.raises(ModelError, match=r"5 samples of \(1, 2, 2\) take .* smaller or fewer"):
        find(tmp_path).read(read)
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(b"nothing")
    with pytest.raises(ModelError, match="none of the 5 pictures could be read"):
        find(tmp_path).read(read)


def test_some_of_each_class_are_held_out() -> None:
    y = np.repeat(np.arange(4, dtype=np.int32), [50, 10, 2, 1])
    data = Dataset(np.arange(63, dtype=np.float32)[:, None], y)
    kept, held = data.split_by_class(0.2, 3)
    assert Counter(held.y.tolist()) == {0: 10, 1: 2, 2: 1}
    assert Counter(kept.y.tolist()) == {0: 40, 1: 8, 2: 1, 3: 1}
    assert sorted([*kept.x[:, 0], *held.x[:, 0]]) == list(range(63))
    assert all(np.array_equal(part.y, y[part.x[:, 0].astype(int)]) for part in (kept, held))
    again, other = data.split_by_class(0.2, 3)[1], data.split_by_class(0.2, 4)[1]
    assert np.array_equal(again.x, held.x) and not np.array_equal(other.x, held.x)
    most = data.split_by_class(0.01, 0)[1]
    assert Counter(most.y.tolist()) == {0: 1, 1: 1, 2: 1}
    with pytest.raises(GlnnError, match="each class has one"):
        data[np.array([0, 50, 60])].split_by_class(0.5)
