"""`glnn filter`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from glnn import filters
from tests.cli.conftest import Glnn


@pytest.fixture
def colours() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (13, 18, 3)).astype(np.uint8)


@pytest.fixture
def picture(tmp_path: Path, colours: np.ndarray) -> Path:
    Image.fromarray(colours).save(tmp_path / "in.png")
    return tmp_path / "in.png"


def read(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("gaussian_blur", "--kernel-size", "7,3"), lambda x: filters.gaussian_blur(x, (7, 3))),
        (("gaussian_blur", "--sigma", "1.5"), lambda x: filters.gaussian_blur(x, None, 1.5)),
        (("box", "--border", "constant"), lambda x: filters.box(x, 3, "constant")),
        (("median",), filters.median),
        (
            ("separable", "--kernel-x", "1", "--kernel-y=0.5,0.5"),
            lambda x: filters.separable(x, (1.0,), (0.5, 0.5)),
        ),
        (
            ("resize", "--size", "9,5", "--interpolation", "area"),
            lambda x: filters.resize(x, (9, 5), "area"),
        ),
        (("grey",), filters.grey),
    ],
)
def test_a_picture_becomes_what_the_filter_gives(
    cli: Glnn, picture: Path, colours: np.ndarray, arguments, expected
) -> None:
    name, *options = arguments
    target = picture.with_name("out.png")
    found = cli("filter", name, picture, target, *options, "--backend", "cpu", "--json").json
    assert (found["filter"], found["backend"]) == (name, "cpu")
    wanted = expected(colours)
    (row,) = found["pictures"]
    assert (row["in"], row["out"]) == (str(picture), str(target))
    assert (row["height"], row["width"]) == wanted.shape[:2] and row["ms"] > 0
    np.testing.assert_array_equal(read(target), wanted)


@pytest.mark.parametrize("name", ["sobel", "scharr", "laplacian"])
def test_edges(cli: Glnn, tmp_path: Path, name: str) -> None:
    step = np.zeros((9, 12), np.uint8)
    step[:, 6:] = 255
    Image.fromarray(step).save(tmp_path / "step.png")
    assert cli("filter", name, tmp_path / "step.png", tmp_path / "edge.png").code == 0
    edge = read(tmp_path / "edge.png")[1:-1]
    assert (edge[:, 5:7] >= 254).all() and not edge[:, :5].any() and not edge[:, 7:].any()
    if name == "laplacian":
        return
    for turned, show, at in ((step, "dx", (4, 5)), (step.T, "dy", (5, 4))):
        Image.fromarray(turned).save(tmp_path / "step.png")
        files = (tmp_path / "step.png", tmp_path / "edge.png")
        assert cli("filter", name, *files, "--show", show, "--overwrite").code == 0
        edge = read(tmp_path / "edge.png")
        assert edge[at] >= 254 and edge[2, 2] == 128


def test_folders_and_patterns(cli: Glnn, tmp_path: Path, colours: np.ndarray) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("a.png", "b.bmp", "c.png"):
        Image.fromarray(colours).save(tmp_path / "photos" / name)
    (tmp_path / "photos" / "notes.txt").write_text("no picture")
    shown = cli("filter", "box", tmp_path / "photos", tmp_path / "new" / "all")
    assert shown.code == 0 and shown.out.count("new/all/") == 3 and shown.err == ""
    assert {path.name for path in (tmp_path / "new" / "all").iterdir()} == {
        "a.png",
        "b.bmp",
        "c.png",
    }
    found = cli("filter", "box", tmp_path / "photos" / "*.png", tmp_path / "some", "--json").json
    assert [Path(row["out"]).name for row in found["pictures"]] == ["a.png", "c.png"]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_any_mode(cli: Glnn, tmp_path: Path, colours: np.ndarray, mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray((colours[..., 0].astype(np.uint16) << 8) + 7)
    else:
        image = Image.fromarray(colours).convert(mode)
    image.save(tmp_path / "in.tif")
    assert cli("filter", "median", tmp_path / "in.tif", tmp_path / "out.png").code == 0
    found = read(tmp_path / "out.png")
    assert found.shape[:2] == colours.shape[:2]
    channels = {"1": 2, "L": 2, "I;16": 2, "P": 3, "CMYK": 3, "LA": 4, "RGBA": 4}[mode]
    assert found.shape[2:] == ((channels,) if channels > 2 else ())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("box", "gone.png", "out.png"), "gone.png: no such file"),
        (("box", "in.png", "out.txt"), "out.txt: expected the name of an image (PNG, JPEG"),
        (("box", "in.png", "in.png"), "in.png: IN and OUT are the same file"),
        (("box", ".", "."), "clear.png: IN and OUT are the same file"),
        (("box", "*.jpg", "out"), "*.jpg: no pictures there"),
        (("box", "*.png", "in.png"), "in.png: IN and OUT are the same file"),
        (("box", "*/in.png", "out"), "out/in.png: two pictures of IN are called so"),
        (("box", "text.png", "out.png"), "text.png: expected an image (PNG, JPEG, "),
        (("box", "clear.png", "out.jpg"), "out.jpg: cannot be written: cannot write mode RGBA"),
        (
            ("box", "in.png", "out.png", "--kernel-size", "3x3"),
            "expected numbers as N|WIDTH,HEIGHT",
        ),
        (
            ("gaussian_blur", "in.png", "out.png", "--kernel-size", "4"),
            "kernel_size must be one or",
        ),
        (("gaussian_blur", "in.png", "out.png"), "kernel_size or sigma must be given, got neither"),
        (("resize", "in.png", "out.png"), "Missing option '--size'"),
        (("blur", "in.png", "out.png"), "No such command 'blur'"),
    ],
)
def test_refused(
    cli: Glnn, picture: Path, colours: np.ndarray, monkeypatch, arguments, says
) -> None:
    monkeypatch.chdir(picture.parent)
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Image.fromarray(colours).save(Path(folder) / "in.png")
    Image.fromarray(colours).convert("RGBA").save("clear.png")
    Path("text.png").write_text("no picture")
    before = set(Path().rglob("*"))
    assert says in cli("filter", *arguments, "--backend", "cpu", "--json").refusal
    assert set(Path().rglob("*")) == before


def test_a_broken_picture_of_a_folder_is_left_out(cli: Glnn, picture: Path) -> None:
    folder = picture.parent
    (folder / "broken.png").write_text("no picture")
    found = cli("filter", "box", folder, folder / "out", "--backend", "cpu", "--json")
    document = json.loads(found.out)
    assert found.code == 2 and "broken.png: expected an image" in found.err
    (failed,) = document["failed"]
    assert failed["in"].endswith("broken.png") and failed["error"] in found.err
    assert [row["in"] for row in document["pictures"]] == [str(picture)]
    assert [path.name for path in (folder / "out").iterdir()] == ["in.png"]


def test_without_pillow(cli: Glnn, picture: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    said = cli("filter", "box", picture, picture.with_name("out.png")).refusal
    assert "reading and writing images needs Pillow: " in said
    assert said.endswith("-m pip install 'pillow>=10.1' (the extra glnn[images])")
