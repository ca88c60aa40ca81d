"""`glnn convert`: a model from one kind of files to another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from glob import escape
from pathlib import Path
from typing import Any

import rich_click as click

from glnn.cli.model_options import ModelName, PictureOptions, load_with, weights_option
from glnn.cli.options import (
    FileName,
    OutputFile,
    WritingCommand,
    output_options,
    print_json,
)
from glnn.cli.results import (
    class_names,
    classes_of,
    classifier_output,
    make_detector,
    refuse_class_option,
)
from glnn.cli.screen import Screen, size
from glnn.core.fileio import onnx_external_files, record_opened_files
from glnn.core.plural import count_of
from glnn.errors import ModelError
from glnn.images import metadata, read_labels, read_preprocessing
from glnn.model import Model
from glnn.model.formats import FORMATS, MATRIX_FILES, find
from glnn.model.weight_files import is_weights, load_weights, save_weights


def _suffix_patterns(parameters: Mapping[str, Any]) -> Sequence[str]:
    """Return the suffixes of files that are written beside OUT, as patterns."""
    return MATRIX_FILES if parameters["format"] == "rovder" else ()


@click.command(cls=WritingCommand)
@click.argument("source", metavar="IN", type=ModelName(".safetensors", ".npz", ".pt", ".pth"))
@click.argument("target", metavar="OUT", type=OutputFile(suffix_patterns=_suffix_patterns))
@click.option(
    "--format",
    type=click.Choice(list(FORMATS)),
    help="What to write; without it OUT's ending decides: .json is glnn, .onnx is onnx.",
)
@click.option(
    "--preprocessing",
    metavar="imagenet|FILE",
    type=FileName(),
    help="What OUT says is done to pictures: as for ImageNet, or as a .json file of glnn, Hugging "
    "Face or timm has it.",
)
@click.option(
    "--labels", metavar="FILE", type=FileName(), help="What OUT says its classes are called."
)
@weights_option
@output_options
def convert(
    source: str,
    target: str,
    format: str | None,
    preprocessing: str | None,
    labels: str | None,
    weights: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Write the model IN, a file or a bundled name, as the file OUT.

    The formats are glnn's own (a .json file, and its weights in an .npz file beside it), ONNX, and
    the Network Definition of Rovder 2017 (a .json file, and its matrices in .json and .csv files
    beside it). IN says by itself what it is. What the format of OUT cannot say is refused, and the
    layer named. A model that was read from an .onnx file is written to another as it was. Metadata
    are kept, but not by rovder; --preprocessing and --labels put into them what `glnn run` reads.

    Where OUT ends with .safetensors, .npz, .pt or .pth, the weights alone are written, by PyTorch's
    names; IN may then be such a file, too.

    \b
    Examples:
      glnn convert lenet lenet.onnx
      glnn convert net.onnx net.json
      glnn convert net.onnx out.onnx --preprocessing imagenet --labels classes.txt
      glnn convert net.json trained.json --weights trained.safetensors
      glnn convert net.json weights.safetensors
      glnn convert net.json mlp.json --format rovder
      glnn convert mlp.json mlp.onnx --json
    """
    config = None if preprocessing is None else read_preprocessing(preprocessing)
    extra = metadata(config, None if labels is None else read_labels(labels))
    weights_only = is_weights(target) and format is None
    if extra and (weights_only or format == "rovder"):
        raise ModelError(f"--preprocessing and --labels: {target} has no place for them")
    if weights_only:
        report = _write_weights(source, target, weights)
    else:
        report = _write_model(source, target, find(target, format), weights, extra, labels)
    beside = () if weights_only else sorted(_files_beside(Path(target), report["format"]))
    report["beside"] = [path.name for path in beside]
    report["bytes"] = sum(path.stat().st_size for path in (Path(target), *beside))
    if as_json:
        print_json(report)
        return
    what = f"{report['model'] or source} as {report['format']}"
    names = ", ".join(report["beside"][:1]) if len(beside) < 2 else count_of(len(beside), "file")
    companions = f" and {names} beside it" if beside else ""
    Screen(wide).say(f"{what}: {target}{companions}, {size(report['bytes'])}")


def _files_beside(target: Path, format: str) -> Iterator[Path]:
    """Yield the files with the weights of the model that was written as `target`."""
    if format == "onnx":
        yield from onnx_external_files(target)
    elif format == "rovder":
        for pattern in MATRIX_FILES:
            yield from target.parent.glob(f"{escape(target.stem)}{pattern}")
    elif (weights := json.loads(target.read_bytes()).get("weights")) is not None:
        yield target.with_name(weights)


def _write_model(
    source: str,
    target: str,
    format: str,
    weights: str | None,
    extra: Mapping[str, str],
    labels: str | None,
) -> dict[str, Any]:
    """Write a model, and return its entry of the report.

    extra: entries to add to its metadata. labels: the file of the classes' names.
    """
    with record_opened_files() as read:
        model = load_with(source, weights)
    if format == "rovder":
        _check_matrix_files(Path(target), [Path(one.path) for one in read])
    model = replace(model, metadata={**model.metadata, **extra}) if extra else model
    if labels is not None:
        _check_labels(model, source, labels)
    model.save(target, format)
    return {
        "model": model.name,
        "file": target,
        "format": format,
        "inputs": {info.name: list(info.shape) for info in model.inputs},
        "outputs": list(model.outputs),
        "metadata": dict(model.metadata),
    }


def _check_labels(model: Model, source: str, labels: str) -> None:
    """Raise ModelError where the classes that the file `labels` names are not those of `model`."""
    if make_detector(model, PictureOptions(labels=labels)) is not None:
        return
    output = classifier_output(model)
    if output is None:
        refuse_class_option("--labels", source, model)
    class_names(labels, model.metadata, classes_of(model, output))


def _check_matrix_files(target: Path, read: Sequence[Path]) -> None:
    """Raise ModelError where one of the files `read` may be written beside `target`."""
    folder = os.path.realpath(target.parent)
    for path in read:
        is_output = any(fnmatch(path.name, f"{escape(target.stem)}{p}") for p in MATRIX_FILES)
        if is_output and os.path.realpath(path.parent) == folder:
            raise ModelError(f"{path}: IN and OUT are the same file")


def _write_weights(source: str, target: str, weights: str | None) -> dict[str, Any]:
    """Write only the weights of a model or of a file, and return the entry of the report."""
    name = None
    if is_weights(source):
        if weights is not None:
            raise ModelError(f"--weights: {source} holds weights itself")
        arrays = load_weights(source)
    else:
        model = load_with(source, weights)
        name, arrays = model.name, model.state_dict()
    save_weights(arrays, target)
    return {
        "model": name,
        "file": target,
        "format": Path(target).suffix[1:].lower(),
        "tensors": {name: list(array.shape) for name, array in arrays.items()},
    }
