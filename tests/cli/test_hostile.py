"""What anyone may have named or left behind: commands neither hang nor hand it to the terminal."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from glnn.backends.opening import _shared
from glnn.errors import printable
from glnn.images.files import FORMATS
from tests.cli.conftest import Glnn, Result

ODD = "a\x1b]0;owned\a\x9b2J\u202eb\r[bold]:bomb:[/x]"
SHOWN = "a\\x1b]0;owned\\x07\\x9b2J\\u202eb\\r[bold]:bomb:[/x]"


def folder(path: Path) -> None:
    path.mkdir()


def full_folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").touch()


def circle(path: Path) -> None:
    path.symlink_to(path)


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


def deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def deep_choices(path: Path) -> None:
    path.write_text('{"form":' + '{"a":' * 900 + "1" + "}" * 901)


PLACED = [os.mkfifo, folder, full_folder, circle, large, deep, deep_choices]
Placed = Callable[[Path], None]


@pytest.fixture
def cache(cli: Glnn, cached: None) -> Callable[..., Result]:
    """Calls the command line, as if for the first time, with a cache folder of its own."""

    def call(*arguments: object) -> Result:
        _shared.backends.clear()
        return cli(*arguments)

    return call


@pytest.fixture
def choices(cache: Callable[..., Result]) -> Path:
    """Where that cache keeps what tuning found for this device."""
    shown = cache("tune", "--show", "--json")
    if shown.code:
        pytest.skip(shown.err)
    path = Path(shown.json["file"])
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize("placed", PLACED, ids=lambda f: f.__name__)
def test_what_lies_where_tuning_keeps_its_choices(
    cache, choices: Path, small: Path, samples: Path, placed: Placed
) -> None:
    placed(choices)
    for arguments in (
        ("run", small, samples, "--backend", "compute", "--json"),
        ("tune", "--show", "--json"),
        ("info", "--json"),
    ):
        done = cache(*arguments)
        assert done.code == 0 and json.loads(done.out)
        assert done.err.startswith(f"glnn: {choices}: not used, as it is damaged: ")
        assert done.err.count("\n") == 1 and done.err.endswith("\n")


@pytest.mark.usefixtures("cached", "searches")
@pytest.mark.parametrize("placed", PLACED, ids=lambda f: f.__name__)
def test_tuning_replaces_what_lies_there(cli: Glnn, choices: Path, placed: Placed) -> None:
    placed(choices)
    tuned = cli("tune", "--size", "8x8x8", "--json")
    forgotten = cli("tune", "--forget", "--json")
    if placed in (folder, full_folder):
        assert tuned.code == forgotten.code == 2
        for failed in (tuned, forgotten):
            assert failed.err.endswith(f"glnn: {json.loads(failed.out)['error']}\n")
        assert "is a folder" in tuned.err and "GLNN_CACHE names another folder" in tuned.err
        assert f"--forget: {choices} cannot be removed: Is a directory" in forgotten.err
    else:
        assert len(json.loads(tuned.out)["choices"]) == 1
        assert forgotten.json["choices"] == {} and not os.path.lexists(choices)


def test_several_backends_warn_once(cache, choices: Path) -> None:
    os.mkfifo(choices)
    done = cache("bench", "lenet", "--repeat", "1", "--batch", "1", "--json")
    assert done.code == 0 and json.loads(done.out)
    assert done.err.count("not used, as it is damaged: is not a file") == 1


@pytest.mark.parametrize("placed", [os.mkfifo, circle, deep], ids=lambda f: f.__name__)
def test_forgetting_what_cannot_be_read(cache, choices: Path, placed: Placed) -> None:
    placed(choices)
    forgotten = cache("tune", "--forget", "--json")
    assert forgotten.code == 0 and not os.path.lexists(choices)
    assert cache("tune", "--show", "--json").json["choices"] == {}


@pytest.mark.parametrize("placed", [os.mkfifo, Path.touch], ids=lambda f: f.__name__)
def test_a_cache_that_is_no_folder(
    cache, small: Path, samples: Path, tmp_path: Path, placed: Placed
) -> None:
    placed(tmp_path / "cache")
    assert cache("run", small, samples, "--backend", "cpu", "--json").json
    if cache("run", small, samples, "--backend", "compute").code == 0:
        assert cache("tune", "--forget", "--json").json["choices"] == {}
        refusal = cache("tune", "--size", "8x8x8").refusal
        assert "what is found cannot be kept" in refusal


@pytest.mark.usefixtures("cached", "searches")
def test_choices_with_odd_names(cli: Glnn, cache, choices: Path) -> None:
    assert cli("tune", "--size", "8x8x8").code == 0
    kept = json.loads(choices.read_text())
    (choice,) = kept["choices"].values()
    kept["choices"] = {ODD: choice | {"kernel": ODD, "parameters": {ODD: 1}}}
    choices.write_text(json.dumps(kept))
    shown = cache("tune", "--show")
    assert shown.code == 0 and safe(shown)
    assert shown.out.count(SHOWN) == 3


def safe(result: Result) -> bool:
    """Whether nothing in it commands a terminal."""
    return printable(result.out + result.err) == result.out + result.err


@pytest.fixture
def odd(small: Path) -> Path:
    """`small`, whose tensors, layers and file have an odd name."""
    text = json.dumps(ODD)
    document = small.read_text().replace('"affine"', text).replace('"small"', text)
    with np.load(small.with_suffix(".npz")) as weights:
        arrays = {name.replace("affine", ODD): array for name, array in weights.items()}
    np.savez(small.with_suffix(".npz"), **arrays)
    path = small.with_name(f"{ODD.replace('/', '')}.json")
    path.write_text(document.replace('"input"', text[:-1] + 'in"'))
    return path


@pytest.mark.parametrize("width", ["80", "300"])
def test_odd_names_everywhere(
    cli: Glnn, monkeypatch: pytest.MonkeyPatch, odd: Path, samples: Path, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    inputs = odd.with_suffix(".npy")
    inputs.write_bytes(samples.read_bytes())
    for verb in (
        ("run", odd, inputs),
        ("bench", odd, inputs, "--repeat", "1", "--backends", "cpu"),
        ("verify", odd, inputs),
        ("plan", odd),
    ):
        done = cli(*verb)
        assert safe(done), verb
        assert done.code == 0 and "\\x1b" in done.out
        assert safe(cli(*verb, "--json"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", ODD),
        ("run", f"{ODD}.json"),
        ("run", f"{ODD}.onnx"),
        ("run", "lenet", f"{ODD}.png"),
        ("run", "lenet", f"{ODD}.npz"),
        ("run", "lenet", "--kernel", f"{ODD}={ODD}"),
        ("run", "lenet", "--gpu", ODD),
        ("run", "lenet", "--backend", ODD),
        ("bench", "lenet", "--backends", ODD),
        ("layout", ODD, "8", "8"),
        ("layout", "R", "8", "8", "--plot", f"{ODD}.bmp"),
        ("tune", "--size", ODD),
        ("kernels", "--op", ODD),
        (ODD,),
        (f"--{ODD}",),
    ],
)
def test_odd_arguments(cli: Glnn, arguments: tuple[str, ...]) -> None:
    refusal = cli(*arguments).refusal
    assert printable(refusal) == refusal


def test_a_file_whose_name_is_no_text(process: Glnn, samples: Path, small: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(samples.parent) + b"/\xff\x1b.npy"))
    assert "no such file" in process("run", small, path).refusal
    path.write_bytes(samples.read_bytes())
    done = process("run", small, path)
    assert done.code == 0 and "\\udcff\\x1b.npy[0]" in done.out


def test_arrays_that_no_input_names_are_not_inflated(cli: Glnn, small: Path) -> None:
    path = small.with_name("x.npz")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as made:  # inflating it is an error
        made.writestr("other.npy", bytes(1 << 20))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as made, made.open("input.npy", "w") as x:
        np.save(x, np.ones((2, 3), np.float32))
    assert cli("run", small, path, "--json", "--backend", "cpu").code == 0


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("shape", [(2**40, 3), (2**40, 4), (2**62, 3), (2**20, 2**20)])
def test_samples_that_are_not_there(
    cli: Glnn, small: Path, suffix: str, shape: tuple[int, ...]
) -> None:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(48)
    path = small.with_name(f"x{suffix}")
    if suffix == ".npz":
        with zipfile.ZipFile(path, "w") as made:
            made.writestr("input.npy", content)
    else:
        path.write_bytes(content)
    assert str(path) in cli("run", small, path).refusal


@pytest.mark.parametrize("begin", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"GIMP"])
@pytest.mark.parametrize("suffix", [".png", ".eps"])
def test_only_raster_images_are_opened(
    cli: Glnn, tmp_path: Path, begin: bytes, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = pytest.importorskip("PIL.EpsImagePlugin")
    monkeypatch.setattr(plugin, "Ghostscript", lambda *_: pytest.fail("Ghostscript was started"))
    path = tmp_path / f"x{suffix}"
    path.write_bytes(begin + b"%%EndComments\n%%EOF\n")
    refusal = cli("run", "lenet", path).refusal
    assert refusal == f"{path}: expected an image ({', '.join(FORMATS)})"
    assert f"an image ({', '.join(FORMATS)})" in cli("run", "--help").out
    page = Path(__file__).parents[2] / "docs/pictures.md"
    assert not page.exists() or f"{', '.join(FORMATS)} (extra: images)" in page.read_text("utf-8")


def test_an_image_of_very_many_pixels(cli: Glnn, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("1", (20_000, 20_000)).save(tmp_path / "x.png")
    assert "cannot be read as an image" in cli("run", "lenet", tmp_path / "x.png").refusal


@pytest.mark.parametrize(
    ("kind", "arguments", "says"),
    [
        ("LocalResponseNorm", {"size": 2**40}, "at most"),
        ("MaxPool2d", {"kernel_size": 2**40, "ceil_mode": True}, "at most"),
        ("MaxPool2d", {"kernel_size": 2, "stride": 2**40}, "at most"),
        ("MaxPool2d", {"kernel_size": 2**20}, "is larger than x"),
        ("MaxPool2d", {"kernel_size": 2**20, "padding": 2**19}, "at most"),
        ("AvgPool2d", {"kernel_size": [2**40, 1]}, "at most"),
        ("MaxPool2d", {"kernel_size": 2, "dilation": 2**40, "ceil_mode": True}, "at most"),
        ("Subsample2d", {"channels": 4, "kernel_size": 2**40}, "at most"),
        ("Concat", {"count": 2**40}, "at most"),
    ],
)
def test_sizes_that_no_shader_holds(
    cli: Glnn, staged: Path, images: Path, kind, arguments, says
) -> None:
    document = json.loads(staged.read_text())
    document["layers"][1] |= {"layer": kind, "arguments": arguments}
    staged.write_text(json.dumps(document))
    refusal = cli("run", staged, images).refusal
    assert "pool" in refusal and says in refusal


@pytest.mark.parametrize("backend", ["compute", "feedback", "cpu"])
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("LocalResponseNorm", {"size": 2**31 - 1}),
        ("MaxPool2d", {"kernel_size": 2**31 - 1, "ceil_mode": True}),
        ("MaxPool2d", {"kernel_size": 2, "stride": 2**31 - 1}),
        ("AvgPool2d", {"kernel_size": 2**31 - 1, "ceil_mode": True}),
    ],
)
def test_sizes_that_a_shader_just_holds(
    cli: Glnn, staged: Path, images: Path, kind, arguments, backend
) -> None:
    document = json.loads(staged.read_text())
    document["layers"][1] |= {"layer": kind, "arguments": arguments}
    staged.write_text(json.dumps(document))
    done = cli("verify", staged, images, "--backend", backend)
    assert done.code == 0, done.err
