"""Finding a model: bundled with glnn, or in a file."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from glnn import data
from glnn.errors import ModelError, shown
from glnn.model import json_format, rovder
from glnn.model.builders import BUILDERS
from glnn.model.files import parse_json, read
from glnn.model.model import Model
from glnn.model.weight_files import is_weights
from glnn.process import COLLECTOR
from glnn.progress_bar import report_work
from glnn.registry import module_for

NEAR = 0.85
"""The least likeness of a name to a known one that it may be meant for; 1 is the same."""


def load(source: str | os.PathLike[str], *, untrained: bool = False) -> Model:
    """The model called `source`.

    source: the name of a bundled model (`lenet`) or of one that is built with seeded weights
    (`vgg16`, `vgg16-c`, `lenet-untrained`), or the path of an .onnx file, or of a .json file,
    glnn's own or a Network Definition of Rovder 2017. untrained: whether the parameters of a .json
    file of glnn's are left as they are initially; the file may then have none. Raises ModelError,
    in one sentence, for every fault.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise ModelError(f"a model must be a name or a path, got {type(source).__name__}")
    work = report_work("loading", os.path.basename(os.fspath(source)))
    with work, COLLECTOR.relaxed():
        return _load(source, untrained)


def _load(source: str | os.PathLike[str], untrained: bool) -> Model:
    """Find and read the model called `source`, as `load` does."""
    if str(source) in BUILDERS:
        return BUILDERS[str(source)]()
    if not str(source):
        raise ModelError("a model must be a name or a path, got an empty text")
    path = Path(source)
    if str(source) in data.MODELS:
        path = data.model(str(source))
    if path.suffix in (".json", ".onnx") and not path.exists() and (meant := _meant(path)):
        raise ModelError(f"{path}: no such file: {meant}")
    if path.suffix == ".onnx":
        found: Model = module_for("read onnx").load(path)
        return found
    if path.suffix != ".json":
        names = ", ".join([*data.MODELS, *BUILDERS])
        if is_weights(path):
            raise ModelError(
                f"{path}: holds weights alone: make or load the model, and then "
                "model.load_state_dict(path), or glnn convert with --weights"
            )
        expected = f"expected a .json or .onnx file, or one of {names}"
        said = " ".join(filter(None, (_meant(path), expected)))
        raise ModelError(f"{_unknown(path)}: {said}")
    while True:
        content = read(path)
        try:
            return _parse(content, str(path), path, untrained)
        except ModelError:
            if read(path) == content:
                raise
        # It was saved anew meanwhile: the weights that it named are gone.


def _unknown(path: Path) -> str:
    """Return the error text for a name without a known ending, which may be that of a file."""
    try:
        there = path.exists()
    except (OSError, ValueError):  # a name too long, or one that holds a zero byte
        return f"unknown model {shown(str(path))}"
    if there:
        what = f"unknown ending {path.suffix!r}" if path.suffix else "unknown kind of file"
        return f"{path}: {'is not a file' if path.is_dir() else what}"
    looks = path.suffix or len(path.parts) > 1
    return f"{path}: no such file" if looks else f"unknown model {str(path)!r}"


def _meant(path: Path) -> str:
    """Return which known model or file beside `path` has nearly its name, as a question."""
    known = [*data.MODELS, *BUILDERS]
    try:
        beside = [one for one in path.parent.iterdir() if one.suffix in (".json", ".onnx")]
    except (OSError, ValueError):
        beside = []
    known += [str(one) for one in beside] + [str(one.with_suffix("")) for one in beside]
    near = get_close_matches(str(path), known, 1, NEAR)
    if not near:
        return ""
    found = next((str(one) for one in beside if str(one.with_suffix("")) == near[0]), near[0])
    return f"did you mean {found}?"


def load_bytes(content: bytes) -> Model:
    """The model of `content`, that of a .json or .onnx file; it can refer to no files."""
    if content[:1] != b"{" and not content.lstrip().startswith(b"{"):
        found: Model = module_for("read onnx").load_bytes(content)
        return found
    return _parse(content, "model given as bytes", None)


def _parse(content: bytes, where: str, path: Path | None, untrained: bool = False) -> Model:
    try:
        document = parse_json(content, where)
        if "format" in document:
            return json_format.parse(document, where, path, untrained)
        return rovder.parse(document, where, path)
    except RecursionError:  # of a message that quotes it
        raise ModelError(f"{where}: nested too deeply") from None
