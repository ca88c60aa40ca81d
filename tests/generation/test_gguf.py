"""GGUF files: what is read of them, and files made to harm."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

from glnn.errors import GlnnError, ModelError
from glnn.generation.gguf import GGUFFile
from glnn.generation.model_file import check_tensors, gguf_config
from glnn.graph.quantization import GGML_FORMATS
from tests.generation.gguf_files import HEADS, WIDTH, small_model, text, write
from tests.quantized import random_blocks, unpacked

COUNT = 10_000 if os.environ.get("GLNN_EXHAUSTIVE") else 1500
ROOM = 64 << 20  # bytes beyond the file


def peak() -> int:
    """The most bytes of memory that this process had at once since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])


def forget_peak() -> None:
    """Have the peak be what there is now: tests before this one may have had more."""
    Path("/proc/self/clear_refs").write_text("5")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    metadata = {"a": 3, "b": -2, "c": 0.5, "d": "é", "e": True, "f": ["x", "", "日本"]}
    metadata["g"] = np.array([1.5, -2], np.float32)
    tensors = {"t": np.arange(6, dtype=np.float32).reshape(2, 3), "u": np.ones(5, np.float32)}
    write(tmp_path / "a.gguf", metadata, tensors)
    with GGUFFile(tmp_path / "a.gguf") as file:
        found = dict(file.metadata)
        assert list(found.pop("f")) == metadata["f"]
        assert found.pop("g").tolist() == [1.5, -2]
        assert found == {key: metadata[key] for key in "abcde"}
        for name, array in tensors.items():
            np.testing.assert_array_equal(file.array(name), array)


@pytest.mark.parametrize("format", GGML_FORMATS)
@pytest.mark.parametrize(("n", "k"), [(1, 256), (5, 768), (3, 64)])
def test_every_format_is_unpacked(format, n, k) -> None:
    form = GGML_FORMATS[format]
    if k % form.block:
        k = form.block
    blocks = random_blocks(format, n, k, seed=n)
    packed, expected = form.pack(blocks, n, k), unpacked(format, blocks, n, k)
    np.testing.assert_allclose(form.unpack(packed, n, k, slice(None)), expected, 1e-6, 1e-6)
    rows = np.array([n - 1, 0])
    np.testing.assert_allclose(form.unpack(packed, n, k, rows), expected[rows], 1e-6, 1e-6)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it begins with b'', not with b'GGUF'"),
        (b"PK\3\4" + b"\0" * 30, "it begins with b'PK"),
        (b"GGUF\1\0\0\0" + b"\0" * 16, "it has version 1, known are 2, 3"),
        (b"GGUF\0\0\0\3" + b"\0" * 16, "is it of a machine with the highest byte first"),
        (b"GGUF\3\0\0\0" + b"\xff" * 8 + b"\0" * 8, "more than 65536"),
        (b"GGUF\3\0\0\0" + b"\0" * 8 + b"\x05" + b"\0" * 7, "for which 0 bytes are too few"),
        (
            b"GGUF\3\0\0\0" + b"\0" * 8 + b"\1" + b"\0" * 7 + text("k") + b"\x63" + b"\0" * 3,
            "the value of 'k' is of type 99",
        ),
        (
            b"GGUF\3\0\0\0" + b"\0" * 8 + b"\1" + b"\0" * 7
            + text("k") + b"\x08\0\0\0" + b"\xff" * 8,
            "bytes of the value of 'k', more than",
        ),
    ],
)  # fmt: skip
def test_what_is_no_gguf_says_why(tmp_path: Path, content, says) -> None:
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=r"a\.gguf: cannot be read as GGUF: ") as error:
        GGUFFile(tmp_path / "a.gguf")
    assert says in str(error.value)


def test_tensors_have_a_place_each(tmp_path: Path) -> None:
    write(
        tmp_path / "a.gguf",
        {},
        {"first": np.ones(64, np.float32), "second": np.ones(64, np.float32)},
    )
    whole = (tmp_path / "a.gguf").read_bytes()
    place = whole.index(b"second") + 6 + 4 + 8 + 4
    for offset, says in (
        (32, "begins inside another"),
        (1 << 40, "takes 256 bytes"),
        (8, "multiple"),
    ):
        changed = whole[:place] + offset.to_bytes(8, "little") + whole[place + 8 :]
        (tmp_path / "b.gguf").write_bytes(changed)
        with pytest.raises(ModelError, match=says):
            GGUFFile(tmp_path / "b.gguf")


def test_mutated_files_are_refused_or_read(tmp_path: Path) -> None:
    """None crashes, hangs, or takes more memory than it has bytes, and some room."""
    path = tmp_path / "m.gguf"
    small_model(path, "llama", "q4_0")
    whole, draw = path.read_bytes(), random.Random(0)
    header = whole.index(b"output_norm.weight") + 200
    forget_peak()
    before = peak()
    refused = 0
    for _ in range(COUNT):
        content = bytearray(whole)
        for _ in range(draw.randrange(1, 5)):
            place = draw.randrange(header)
            kind = draw.randrange(3)
            if kind == 0:
                content[place] ^= 1 << draw.randrange(8)
            elif kind == 1:
                content[place : place + 8] = draw.randbytes(8)
            else:
                content[place : place + 8] = (
                    draw.choice((0, 1, 2**31, 2**63, 2**64 - 1))
                ).to_bytes(8, "little")
        if draw.random() < 0.2:
            content = content[: draw.randrange(len(content))]
        path.write_bytes(content)
        try:
            with GGUFFile(path) as file:
                config, weights = gguf_config(file), file
                check_tensors(path, config, weights)
                for name in list(file.tensors)[:5]:
                    file.array(name)
        except GlnnError:
            refused += 1
    assert refused > COUNT / 4
    assert peak() - before <= len(whole) + ROOM


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_scores_of_the_largest_gemmas_have_their_own_factor(
    tmp_path: Path, architecture, layers
) -> None:
    """Their files do not say it, as those of 27 billion weights do not."""
    for count, scale in ((layers, (HEADS / WIDTH) ** 0.5), (layers - 1, 0.0)):
        small_model(tmp_path / "m.gguf", architecture, **{f"{architecture}.block_count": count})
        with GGUFFile(tmp_path / "m.gguf") as file:
            assert gguf_config(file).scale == pytest.approx(scale)
