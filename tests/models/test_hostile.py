"""Files made to harm: refused in one sentence, before they take memory or time."""

from __future__ import annotations

import gzip
import inspect
import io
import json
import random
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glnn.errors import GlnnError, ModelError, printable
from glnn.layers import BY_NAME
from glnn.model import load

FAST = 1  # the level of compression: the best takes most of these tests' time
Edit = Callable[[Callable[[Any], object]], Path]
WEIGHT, BIAS = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
MEASURED = """
import re, sys
from pathlib import Path
import glnn, numpy, zipfile, gzip
from glnn.model.load import load
from glnn.errors import GlnnError
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = peak()
try:
    load(sys.argv[1])
except GlnnError as error:
    print(str(error).replace("\\n", " "))
else:
    print("loaded")
print(peak() - before)
"""


def loading(path: Path) -> tuple[str, float]:
    """The error of loading a model in a process of its own, and the MiB that it took."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True
    )
    message, kib = done.stdout.splitlines()
    return message, int(kib) / 1024


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def header(shape: str, descr: str = "'<f4'") -> bytes:
    """The header of an .npy file that says what it likes."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def zeros(mebibytes: int, begin: bytes = b"") -> bytes:
    """A raw deflate stream of `begin` and as many zeros as that."""
    packer = zlib.compressobj(FAST, zlib.DEFLATED, -15)
    parts = [packer.compress(begin)]
    parts += [packer.compress(bytes(1 << 20)) for _ in range(mebibytes)]
    return b"".join([*parts, packer.flush()])


def archive(path: Path, members: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w", kind) as made:
        for name, content in members.items():
            made.writestr(name, content)


def bomb(path: Path, name: str, begin: bytes, mebibytes: int = 198) -> None:
    """Archive the parameters of `small`, with `name` being `begin` and a great many zeros."""
    members = {"affine.weight.npy": npy(WEIGHT), "affine.bias.npy": npy(BIAS)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=FAST) as made:
        for member, content in members.items():
            if member != name:
                made.writestr(member, content)
        with made.open(name, "w") as stream:
            stream.write(begin)
            for _ in range(mebibytes):
                stream.write(bytes(1 << 20))


BYTES = 198 << 20
BOMBS = {
    "no layer names it": ("bomb.npy", header(f"({BYTES // 4},)"), "'bomb' belongs to no layer"),
    "another shape": ("affine.weight.npy", header(f"({BYTES // 4},)"), "must have shape (2, 3)"),
    "another type": ("affine.weight.npy", header("(2, 3)", f"'|S{BYTES // 6}'"), "got |S"),
    "objects": ("affine.weight.npy", header("(2, 3)", "'|O'"), "pickled objects"),
    "more than it says": ("affine.weight.npy", header("(2, 3)"), "takes 24 bytes, it has"),
    "no array": ("affine.weight.npy", b"", "cannot be read as .npz"),
    "a long header": (
        "affine.weight.npy",
        b"\x93NUMPY\x02\x00" + (BYTES - 100).to_bytes(4, "little"),
        "cannot be read as .npz",
    ),
    "no .npy": ("bomb", b"", "'bomb' is not an array"),
}


@pytest.mark.parametrize("which", BOMBS)
def test_bombs(saved: Path, which: str) -> None:
    name, begin, says = BOMBS[which]
    bomb(saved.with_suffix(".npz"), name, begin)
    message, taken = loading(saved)
    assert says in message and "small.npz" in message
    assert taken < 30


def test_a_size_that_lies(saved: Path) -> None:
    """The list of members says 152 bytes, and 200 MiB follow."""
    weights = saved.with_suffix(".npz")
    begin = header("(2, 3)")
    content = zeros(200, begin)
    archive(weights, {"affine.bias.npy": npy(BIAS), "affine.weight.npy": begin + bytes(24)})
    with zipfile.ZipFile(weights) as whole:
        members = {info.filename: info for info in whole.infolist()}
    raw, info = weights.read_bytes(), members["affine.weight.npy"]
    start = info.header_offset + 30 + len(info.filename)
    end = start + info.compress_size
    raw = raw[:start] + content + raw[end:]
    place = raw.rindex(b"PK\x01\x02") + 20  # the compressed size, in the list
    raw = raw[:place] + len(content).to_bytes(4, "little") + raw[place + 4 :]
    place = raw.rindex(b"PK\x05\x06") + 16  # where the list begins
    moved = int.from_bytes(raw[place : place + 4], "little") + len(content) - (end - start)
    weights.write_bytes(raw[:place] + moved.to_bytes(4, "little") + raw[place + 4 :])
    message, taken = loading(saved)
    assert message == "loaded"  # the numbers that belong there, and nothing behind them
    assert taken < 30


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions(saved: Path, kind: int) -> None:
    """zipfile does not bound what they inflate to."""
    members = {"affine.weight.npy": npy(WEIGHT), "affine.bias.npy": npy(BIAS)}
    archive(saved.with_suffix(".npz"), members, kind)
    with pytest.raises(ModelError, match="is not compressed as"):
        load(saved)


def test_layers_as_large_as_the_bomb(edit: Edit) -> None:
    """The .json file belongs to the bomb: real weights do not shrink to a thousandth."""

    def widen(document: Any) -> None:
        document["inputs"][0]["shape"] = ["N", 17_000]
        document["layers"][0]["arguments"].update(in_features=17_000, out_features=17_000)

    saved = edit(widen)
    begin = header("(17000, 17000)")
    size = 4 * 17_000 * 17_000
    weights = saved.with_suffix(".npz")
    with zipfile.ZipFile(weights, "w", zipfile.ZIP_DEFLATED, compresslevel=FAST) as made:
        made.writestr("affine.bias.npy", npy(np.zeros(17_000, np.float32)))
        with made.open("affine.weight.npy", "w") as stream:
            stream.write(begin)
            for start in range(0, size, 1 << 20):
                stream.write(bytes(min(1 << 20, size - start)))
    message, taken = loading(saved)
    assert "would inflate to 1156000000, at most 1073741824 are" in message
    assert taken < 30


def test_very_many_members(saved: Path) -> None:
    with zipfile.ZipFile(saved.with_suffix(".npz"), "w") as made:
        for number in range(60_000):
            made.writestr(f"a member with a rather long name {number}.npy", b"")
    message, taken = loading(saved)
    assert "its list of arrays is too long" in message
    assert taken < 30


def test_two_arrays_of_one_name(saved: Path) -> None:
    with zipfile.ZipFile(saved.with_suffix(".npz"), "w") as made:
        made.writestr("affine.bias.npy", npy(BIAS))
        for _ in range(2):
            with pytest.warns(UserWarning, match="Duplicate") if _ else io.BytesIO():
                made.writestr("affine.weight.npy", npy(WEIGHT))
    with pytest.raises(ModelError, match=r"2 arrays are called 'affine\.weight'"):
        load(saved)


@pytest.mark.parametrize(
    "begin",
    [
        header("(-2, -3)"),
        header("(2, 3.0)"),
        header("(2, float('nan'))"),
        header("(2, None)"),
        header(f"({2**70}, 3)"),
        header("(2, 3)", "[('a', '<f4')]"),
        header("(2, 3)", "'<f4, <f4'"),
        header("(2, 3)", "'nothing'"),
        header("(2, 3)", "'|V0'"),
        header("(" * 200 + ")" * 200),
        header("2, 3"),
        b"\x93NUMPY\x03\x00\x10\x00",
        b"\x93NUMPY\x09\x00\x10\x00",
        b"\x93NUMPY\x01\x00\xff\xff" + b"-" * 65535,
        b"",
    ],
)
def test_headers(saved: Path, begin: bytes) -> None:
    members = {"affine.weight.npy": begin + bytes(24), "affine.bias.npy": npy(BIAS)}
    archive(saved.with_suffix(".npz"), members)
    with pytest.raises(ModelError, match=r"small\.npz"):
        load(saved)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", ">f8", "<f2"])
def test_what_is_read_is_what_was_written(saved: Path, kind: str, order: str) -> None:
    """Other types are turned to float32, which is nearest where it cannot hold them."""
    array = np.array([[1 / 3, 2, -1e-3], [0, 1000.1, -7]]).astype(kind, order)  # type: ignore[call-overload]
    np.savez_compressed(saved.with_suffix(".npz"), **{"affine.weight": array, "affine.bias": BIAS})
    with np.load(saved.with_suffix(".npz")) as written:
        stored = written["affine.weight"]
        assert stored.dtype == kind and stored.flags.f_contiguous == (order == "F")
    read = load(saved).parameters()["affine.weight"]
    assert read.dtype == np.float32 and np.array_equal(read, array.astype(np.float32))


def test_json_larger_than_any_model(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    with path.open("wb") as file:
        file.truncate(1 << 34)
    message, taken = loading(path)
    assert "cannot be read: holds more than 16777216 bytes" in message
    assert taken < 30


@pytest.mark.parametrize("depth", [50, 300, 700, 900, 960, 985, 990, 995, 1_000, 20_000])
@pytest.mark.parametrize("key", ["format", "layers", "inputs", "name", "outputs", "weights", "new"])
def test_json_of_any_depth(edit: Edit, key: str, depth: int) -> None:
    saved = edit(lambda d: d.update({key: "deep"}))
    saved.write_text(saved.read_text().replace('"deep"', "[" * depth + "]" * depth))
    with pytest.raises(ModelError, match=r"small\.json"):
        load(saved)


@pytest.mark.parametrize("depth", [900, 985, 20_000])
@pytest.mark.parametrize("key", ["arguments", "layer", "inputs", "output"])
def test_layers_of_any_depth(edit: Edit, key: str, depth: int) -> None:
    saved = edit(lambda d: d["layers"][0].update({key: "deep"}))
    for open_, close in (("[", "]"), ('{"a":', "}")):
        deep = open_ * depth + "1" + close * depth
        saved.write_text(saved.read_text().replace('"deep"', deep))
        with pytest.raises(ModelError, match=r"small\.json"):
            load(saved)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"version": 1', '"version": 1, "version": 1', "the key 'version' occurs twice"),
        ('"in_features": 3', '"in_features": 3, "in_features": 3', "'in_features' occurs twice"),
        ('"in_features": 3', f'"in_features": {"3" * 400}', "an integer of 400 digits"),
        ('"in_features": 3', '"in_features": 1e400', "got inf"),
        ('"in_features": 3', '"in_features": NaN', "got nan"),
        ('"N", 3', '"N", NaN', "a shape must be positive integers"),
        ('"N", 3', '"N", -3', "a shape must be positive integers"),
        ('"N", 3', '"N", 3e0', "a shape must be positive integers"),
        ('"small.npz"', '"small\\u0000.npz"', "is not a usable file name"),
        ('"small.npz"', '"x/../../small.npz"', "leaves the model's folder"),
        ('"small.npz"', f'"{"x" * 5000}"', "not a usable file name"),
        ('"small.npz"', '"\\ud800.npz"', "not a usable file name"),
    ],
)
def test_json(saved: Path, old: str, new: str, says: str) -> None:
    text = saved.read_text()
    assert old in text
    saved.write_text(text.replace(old, new))
    with pytest.raises(ModelError) as caught:
        load(saved)
    assert says in str(caught.value)


def test_very_many_keys_and_one_twice(saved: Path) -> None:
    keys = ",".join(f'"k{number}": 0' for number in range(300_000))
    saved.write_text(f'{{{keys}, "k299999": 1}}')
    with pytest.raises(ModelError, match="'k299999' occurs twice"):
        load(saved)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize("line", ["0," * 5000 + "0\n", "\n" * 10_000, "0", "0,0,0\n" * 2000, " "])
def test_matrices_longer_than_they_should_be(network: Path, suffix: str, line: str) -> None:
    """200 MB where six numbers belong."""
    file = network.parent / f"1_w{suffix}"
    opener: Any = partial(gzip.open, compresslevel=FAST) if suffix == ".csv.gz" else open
    with opener(file, "wb") as stream:
        chunk = line.encode() * (10_000_000 // len(line))
        for _ in range(20):
            stream.write(chunk)
    definition = json.loads((network.parent / "1_w.json").read_text())
    (network.parent / "1_w.json").write_text(json.dumps(definition | {"file": file.name}))
    message, taken = loading(network)
    assert str(file) in message
    assert taken < 30


def test_a_compressed_matrix(network: Path) -> None:
    plain = network.parent / "1_w.csv"
    with gzip.open(network.parent / "1_w.csv.gz", "wb") as stream:
        stream.write(plain.read_bytes())
    definition = json.loads((network.parent / "1_w.json").read_text())
    (network.parent / "1_w.json").write_text(json.dumps(definition | {"file": "1_w.csv.gz"}))
    expected = np.loadtxt(plain, np.float32, delimiter=",")
    plain.unlink()
    assert np.array_equal(load(network).parameters()["linear1.weight"], expected)
    packed = network.parent / "1_w.csv.gz"
    for content in (packed.read_bytes()[:-9], b"no gzip", b"\x1f\x8b" + bytes(99)):
        packed.write_bytes(content)
        with pytest.raises(ModelError, match="not numbers separated by commas"):
            load(network)


def test_matrices_that_promise_the_moon(network: Path) -> None:
    definition = network.parent / "1_w.json"
    for rows in (2**31, 10**18):
        definition.write_text(json.dumps(json.loads(definition.read_text()) | {"rows": rows}))
        with pytest.raises(ModelError, match="would inflate to"):
            load(network)


def test_random_damage(saved: Path, network: Path) -> None:
    """Whatever is done to a file, loading gives a model or one of glnn's errors."""
    generator = random.Random(7)
    files = [saved, saved.with_suffix(".npz"), network, *network.parent.glob("1_*")]
    for file in files:
        good = file.read_bytes()
        for _ in range(60):
            bad = bytearray(good)
            for _ in range(generator.choice((1, 1, 3, 10))):
                place = generator.randrange(len(bad))
                how = generator.randrange(4)
                if how == 0:
                    bad[place] = generator.randrange(256)
                elif how == 1:
                    del bad[place : place + generator.randrange(1, 20)]
                elif how == 2:
                    bad[place:place] = generator.choice((b"9" * 30, b"[", b"{", b'"', b"-", b"\0"))
                else:
                    bad[place:place] = bad[: generator.randrange(1, 40)]
                bad = bad or bytearray(b"x")
            file.write_bytes(bytes(bad))
            try:
                load(saved if file.name.startswith("small") else network)
            except GlnnError as error:
                text = str(error)
                assert text == printable(text) and text
        file.write_bytes(good)


SIZES = (0, 1, 2, 3, 5, 16, 255, 2**15, 2**20, 2**30, 2**31 - 1, 2**31, 2**63, 10**19, -1)
ODD = (0.5, 1e308, 1e-300, float("inf"), float("nan"), True, None, "x", [], [1, 2, 3], {}, [[1], 1])


def argument(generator: random.Random) -> Any:
    kind = generator.randrange(10)
    if kind == 0:
        return generator.choice(ODD)
    one, two = (generator.choice(SIZES if kind < 4 else SIZES[1:6]) for _ in range(2))
    return [one, two] if kind in (3, 9) else one


def test_random_arguments() -> None:
    """A layer of any arguments is refused, or computed by the CPU at once."""
    generator = random.Random(11)
    kinds = [name for name, kind in BY_NAME.items() if name != "AffineLayer"]
    computed = 0
    for _ in range(2000):
        kind = generator.choice(kinds)
        names = inspect.signature(BY_NAME[kind]).parameters
        arguments = {name: argument(generator) for name in names if generator.random() < 0.7}
        try:
            layer = BY_NAME[kind](**arguments)
            count = layer.inputs
            channels = generator.choice((1, 3, 16))
            x = np.ones((2, channels, 5, 4)[: generator.choice((2, 4, 4))], np.float32)
            if np.prod(layer.infer(*[x.shape] * count)) < 1e6:
                layer(*[x] * count, backend="cpu")
                computed += 1
        except (GlnnError, TypeError) as error:  # as Python says it of a missing argument
            assert "required" in str(error) or isinstance(error, GlnnError)
    assert computed > 300


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=300), kind=st.sampled_from([".json", ".npz"]))
def test_random_bytes(saved: Path, content: bytes, kind: str) -> None:
    file = saved.with_suffix(kind)
    good = file.read_bytes()
    file.write_bytes(content)
    try:
        with pytest.raises(ModelError):
            load(saved)
    finally:
        file.write_bytes(good)


@pytest.mark.parametrize(
    "name", ["a\x1b[31mred", "bell\a", "\x9b2J", "\u202eabc", "\ud800", "a\rb"]
)
def test_names_that_command_a_terminal_are_escaped_in_errors(edit: Edit, name: str) -> None:
    saved = edit(lambda d: d["layers"][1].update(name=name, output="affine"))
    with pytest.raises(ModelError) as caught:
        load(saved)
    assert printable(str(caught.value)) == str(caught.value)
    saved = edit(
        lambda d: d["layers"][1].update(name=name, output="end") or d.update(outputs=["end"])
    )
    model = load(saved)
    assert model.nodes[1].name == name
    assert printable(str(model)) == str(model)
    with pytest.raises(ModelError) as caught:
        load(saved.with_name(f"{name.replace(chr(0xD800), '')}.json"))
    assert printable(str(caught.value)) == str(caught.value)


def test_printable() -> None:
    assert printable("größe 图 x\ny") == "größe 图 x\ny"
    assert printable("\x1b]0;x\a\x9b\r\0\u202e\ud800\u2028") == (
        "\\x1b]0;x\\x07\\x9b\\r\\x00\\u202e\\ud800\\u2028"
    )
