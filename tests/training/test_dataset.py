"""Files of samples: .npz, and MNIST's; those of nobody's good will are refused in a sentence."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glnn.errors import GlnnError, ModelError, ShapeError
from glnn.model import TensorInfo
from glnn.training.dataset import Dataset, read_dataset, read_idx

IMAGES = np.arange(5 * 3 * 2, dtype=np.uint8).reshape(5, 3, 2)
LABELS = np.array([3, 0, 1, 1, 9], np.uint8)


def idx(array: np.ndarray, magic: int | None = None) -> bytes:
    """What an IDX file of `array` holds."""
    begin = struct.pack(">I", 0x800 + array.ndim if magic is None else magic)
    return begin + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A folder as MNIST is, half of it packed."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part, count in (("train", 5), ("t10k", 2)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(IMAGES[:count]))
        packed = gzip.compress(idx(LABELS[:count]))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(packed)
    (folder / "README").write_text("digits")
    return folder


def test_a_folder_of_mnist(mnist: Path) -> None:
    training, held = read_dataset(mnist)
    assert held is not None
    for found, count in ((training, 5), (held, 2)):
        assert np.array_equal(found.x, IMAGES[:count]) and found.x.dtype == np.uint8
        assert np.array_equal(found.y, LABELS[:count]) and found.y.dtype == np.int32
    for path in mnist.glob("t10k*"):
        path.unlink()
    packed = mnist / "train-images-idx3-ubyte"
    packed.rename(mnist / "train-images.idx3-ubyte")  # as some unpack it
    training, held = read_dataset(str(mnist))
    assert len(training) == 5 and held is None


def test_one_that_is_not_packed_goes_first(mnist: Path) -> None:
    (mnist / "train-labels-idx1-ubyte").write_bytes(idx(LABELS[::-1]))
    assert np.array_equal(read_dataset(mnist)[0].y, LABELS[::-1])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it ends after 0 bytes, in its header"),
        (idx(IMAGES)[:15], "it ends after 15 bytes, in its header"),
        (idx(IMAGES)[:-1], r"\(5, 3, 2\) take 30 bytes behind its header, it has 29"),
        (idx(IMAGES) + b"x", r"\(5, 3, 2\) take 30 bytes behind its header, it has 31"),
        (idx(IMAGES, 0x803 + (5 << 8)), "expected the magic number 2051 of bytes in 3 dim"),
        (idx(LABELS), "magic number 2051 of bytes in 3 dimensions, got 2049"),
        (struct.pack(">4I", 0x803, *[2**32 - 1] * 3), "bytes behind its header, it has 0"),
        (idx(IMAGES[:0]), "x must have a sample at least"),
        (idx(IMAGES[:4]), r"as many samples, got shapes \(4, 3, 2\) and \(5,\)"),
    ],
)
def test_a_damaged_file(mnist: Path, content: bytes, says: str) -> None:
    (mnist / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(ModelError, match=says) as refused:
        read_dataset(mnist)
    assert str(refused.value).startswith(str(mnist)) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (idx(LABELS), "cannot be read as IDX: Not a gzipped file"),
        (gzip.compress(idx(LABELS))[:-12], "cannot be read as IDX: "),
        (gzip.compress(idx(LABELS)[:-1]), "it ends after 4 of 5 bytes"),
        (gzip.compress(idx(LABELS) + b"x"), "it holds more than 5 bytes"),
        (gzip.compress(struct.pack(">2I", 0x801, 2**32 - 1)), "would inflate to 4294967295"),
    ],
    ids=["not packed", "cut off", "a byte less", "a byte more", "many"],  # gzip writes the time
)
def test_a_damaged_packed_file(mnist: Path, content: bytes, says: str) -> None:
    (mnist / "train-labels-idx1-ubyte.gz").write_bytes(content)
    with pytest.raises(ModelError, match=says):
        read_dataset(mnist)


def test_what_a_folder_lacks(mnist: Path) -> None:
    (mnist / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(ModelError, match=r"expected t10k-images-idx3-ubyte, or .*\.gz, it has REA"):
        read_dataset(mnist)
    (mnist / "train-images-idx3-ubyte").unlink()
    with pytest.raises(ModelError, match=r"expected train-images-idx3-ubyte, or .*, it has READ"):
        read_dataset(mnist)
    os.mkfifo(mnist / "train-images-idx3-ubyte")
    with pytest.raises(ModelError, match="train-images-idx3-ubyte: is not a file"):
        read_dataset(mnist)


def test_an_idx_file_of_many_bytes(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 255, (50, 200, 300), np.uint8)  # 3 MB
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx(array), 1))
    assert np.array_equal(read_idx(tmp_path / "a.gz", 3), array)


ARRAYS: list[dict[str, Any]] = [
    {"x": IMAGES, "y": LABELS},
    {"labels": LABELS, "images": IMAGES, "more": LABELS},
    {"image": IMAGES, "label": LABELS},
    {"b": LABELS, "a": IMAGES},
    {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:2], "y_test": LABELS[:2]},
]


@pytest.mark.parametrize("arrays", ARRAYS, ids=lambda arrays: next(iter(arrays)))
def test_an_archive(arrays: dict[str, Any], tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "data.npz", **arrays)
    found, held = read_dataset(tmp_path / "data.npz")
    assert np.array_equal(found.x, IMAGES) and np.array_equal(found.y, LABELS)
    assert (held is None) is ("x_test" not in arrays)
    assert held is None or len(held) == 2


def test_names_of_classes(tmp_path: Path) -> None:
    names = [f"class {i}" for i in range(10)]
    np.savez(tmp_path / "data.npz", x=IMAGES, y=LABELS, classes=names)
    assert read_dataset(tmp_path / "data.npz")[0].classes == tuple(names)
    np.savez(tmp_path / "data.npz", x=IMAGES, y=LABELS, classes=names[:9])
    with pytest.raises(ModelError, match=r"data\.npz: y has class 9, 9 have names"):
        read_dataset(tmp_path / "data.npz")


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"a": IMAGES, "b": IMAGES}, "expected the arrays x and y, or .*; it has a, b$"),
        ({f"a{i}": IMAGES for i in range(10)}, "it has a0, a1, .*, a7 and 2 more$"),
        ({"x": IMAGES, "y": LABELS[:3]}, r"x and y must be of as many samples, got .*\(3,\)$"),
        ({"x": IMAGES, "y": np.array("abcde")}, "must be of as many samples"),
        ({"x": IMAGES, "y": np.array(list("abcde"))}, "y must be of numbers, got <U1$"),
        ({"x": IMAGES, "y": np.array([2**40] * 5)}, "y has numbers that int32 does not hold"),
        ({"x": IMAGES[:0], "y": LABELS[:0]}, "x must have a sample at least"),
        ({"x": IMAGES, "y": LABELS, "classes": LABELS}, "'classes' must be a list of texts"),
        ({"x": np.array([None] * 5), "y": LABELS}, "'x' holds pickled objects, which are refused"),
    ],
)
def test_an_archive_that_is_refused(arrays: dict[str, Any], says: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(ModelError, match=says) as refused:
        read_dataset(tmp_path / "data.npz")
    assert str(refused.value).count("data.npz") == 1 and "\n" not in str(refused.value)


PLACES: list[tuple[Callable[[Path], Any], str]] = [
    (
        lambda path: None,
        "expected an .npz file, a folder of IDX files, or one with",
    ),
    (lambda path: path.mkdir(), "expected train-images-idx3-ubyte, or .*, it has none"),
    (lambda path: path.with_suffix(".npz").write_bytes(b"PK"), "cut short"),
]


@pytest.mark.parametrize(("make", "says"), PLACES)
def test_a_place_of_no_data(make: Callable[[Path], Any], says: str, tmp_path: Path) -> None:
    make(tmp_path / "data")
    with pytest.raises(ModelError, match=says):
        read_dataset(next(tmp_path.iterdir(), tmp_path / "data"))


def test_as_a_model_takes_them() -> None:
    data = Dataset(IMAGES, LABELS)
    grey = data.fitting(TensorInfo("x", ("N", 1, 3, 2)))
    assert grey.x.shape == (5, 1, 3, 2) and grey.x.dtype == np.float32
    assert np.array_equal(grey.x[:, 0], IMAGES.astype(np.float32) / np.float32(255))
    flat = data.fitting(TensorInfo("x", ("N", 6)))
    assert np.array_equal(flat.x, grey.x.reshape(5, 6))
    same = data.fitting(TensorInfo("x", ("N", 3, 2), "tensor(uint8)"))
    assert np.array_equal(same.x, IMAGES) and same.x.dtype == np.uint8
    words = Dataset(LABELS[:, None].astype(np.int64), LABELS)
    assert words.fitting(TensorInfo("x", ("N", 1), "tensor(int32)")).x.dtype == np.int32
    with pytest.raises(ShapeError, match=r"expected shape \(N, 7\), got \(5, 3, 2\)"):
        data.fitting(TensorInfo("x", ("N", 7)))
    with pytest.raises(ShapeError, match="expected int32, got uint8"):
        data.fitting(TensorInfo("x", ("N", 3, 2), "tensor(int32)"))


def test_numbers_become_those_of_a_step() -> None:
    data = Dataset(IMAGES.astype(np.float64), LABELS[:, None] / 2)
    assert data.x.dtype == data.y.dtype == np.float32 and data.y.shape == (5, 1)
    assert Dataset(IMAGES, LABELS > 2).y.dtype == np.float32
    for x, y in ((IMAGES, "y"), (None, LABELS), (IMAGES, np.float32(1)), (IMAGES[:3], LABELS)):
        with pytest.raises(ShapeError):
            Dataset(x, y)  # type: ignore[arg-type]


def test_a_part_is_held_out() -> None:
    data = Dataset(np.arange(100, dtype=np.float32), np.arange(100))
    kept, held = data.split(0.2, seed=3)
    assert len(kept) == 80 and len(held) == 20
    assert {*kept.y.tolist(), *held.y.tolist()} == {*range(100)}
    assert np.array_equal(kept.x, kept.y) and np.array_equal(held.x, held.y)
    assert np.array_equal(held.y, data.split(0.2, seed=3)[1].y)
    assert not np.array_equal(held.y, data.split(0.2, seed=4)[1].y)
    for fraction in (0, 1, -0.5, 0.001, 0.999, float("nan"), "0.2"):
        with pytest.raises(GlnnError, match="fraction must leave a sample of 100 on either side"):
            data.split(fraction)  # type: ignore[arg-type]
