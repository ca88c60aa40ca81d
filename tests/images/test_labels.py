"""Names of classes in files and metadata, as people write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glnn.errors import ModelError
from glnn.images import labels_of, metadata, read_labels

NAMES = {0: "tench", 1: "great white shark, man-eater", 2: "Hühner"}
FILES = {
    "lines.txt": "tench\ngreat white shark, man-eater\r\nHühner\n\n",
    "mark.txt": "\ufefftench\ngreat white shark, man-eater\nHühner",
    "list.json": json.dumps(list(NAMES.values())),
    "numbers.json": json.dumps({str(k): v for k, v in NAMES.items()}),
    "names.json": json.dumps({v: k for k, v in NAMES.items()}),
    "config.json": json.dumps({"id2label": {str(k): v for k, v in NAMES.items()}, "layers": 3}),
    "keras.json": json.dumps({str(k): [f"n0{k}", v] for k, v in NAMES.items()}),
    "head.csv": 'index,name\n0,tench\n1,"great white shark, man-eater"\n2,Hühner\n',
    "turned.csv": '"great white shark, man-eater",1\ntench,0\nHühner,2\n',
    "names.csv": 'tench\n"great white shark, man-eater"\nHühner\n',
}


@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name].encode())
    assert read_labels(str(tmp_path / name)) == NAMES


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.txt", b""),
        ("x.txt", b"\xff\xfe"),
        ("x.json", b"{"),
        ("x.json", b"3"),
        ("x.json", b"[]"),
        ("x.json", b"[1, 2]"),
        ("x.json", b'{"-1": "a"}'),
        ("x.json", b'{"a": "b"}'),
        ("x.json", b'{"9999999999999": "a"}'),
        ("x.json", b"[" * 100_000),
        ("x.csv", b""),
        ("x.csv", b"0,a\nb,c\n"),
        ("x.csv", b"0,a\n0,b\n"),
    ],
)
def test_what_is_none_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=r"x\.(txt|json|csv): (no names|expected names)"):
        read_labels(str(tmp_path / name))
    with pytest.raises(ModelError, match="no such file"):
        read_labels(str(tmp_path / "gone.txt"))


def test_metadata() -> None:
    ours = metadata(labels=list(NAMES.values()))
    assert labels_of(ours) == NAMES
    assert labels_of(metadata(labels={5: "a", 2: "b"})) == {5: "a", 2: "b"}
    assert labels_of({"names": "{0: 'tench', 1: 'it\\'s'}"}) == {0: "tench", 1: "it's"}
    assert labels_of({"id2label": '{"0": "a"}'}) == {0: "a"}
    assert labels_of({"labels": "a, b,c"}) == {0: "a", 1: "b", 2: "c"}
    assert labels_of({"labels": "a, b\nc\n"}) == {0: "a, b", 1: "c"}
    assert labels_of({"labels": "{broken", "names": "['a']"}) == {0: "a"}
    assert labels_of({"labels": " ", "author": "nobody"}) is None
    for wrong in ("abc", [1], {-1: "a"}, []):
        with pytest.raises(ModelError, match="labels must be names"):
            metadata(labels=wrong)  # type: ignore[arg-type]
