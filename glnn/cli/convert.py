"""`glnn convert`: a model from one kind of files to another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import rich_click as click

from glnn.cli.options import output_options, print_json
from glnn.cli.screen import Screen, size
from glnn.errors import ModelError
from glnn.images import metadata, read_labels, read_preprocessing
from glnn.model import load
from glnn.model.formats import FORMATS, find


@click.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option(
    "--format",
    type=click.Choice(list(FORMATS)),
    help="What to write; without it OUT's ending decides: .json is glnn, .onnx is onnx.",
)
@click.option(
    "--preprocessing",
    metavar="imagenet|FILE",
    help="What OUT says is done to pictures: as for ImageNet, or as a .json file of glnn, Hugging "
    "Face or timm has it.",
)
@click.option("--labels", metavar="FILE", help="What OUT says its classes are called.")
@output_options
def convert(
    source: str,
    target: str,
    format: str | None,
    preprocessing: str | None,
    labels: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Write the model IN, a file or a bundled name, as the file OUT.

    The formats are glnn's own (a .json file, and its weights in an .npz file beside it), ONNX, and
    the Network Definition of Rovder 2017 (a .json file, and its matrices in .json and .csv files
    beside it). IN says by itself what it is. What the format of OUT cannot say is refused, and the
    layer named. A model that was read from an .onnx file is written to another as it was. Metadata
    are kept, but not by rovder; --preprocessing and --labels put into them what `glnn run` reads.

    \b
    Examples:
      glnn convert lenet lenet.onnx
      glnn convert net.onnx net.json
      glnn convert net.onnx out.onnx --preprocessing imagenet --labels classes.txt
      glnn convert net.json mlp.json --format rovder
      glnn convert mlp.json mlp.onnx --json
    """
    chosen = find(target, format)
    how = None if preprocessing is None else read_preprocessing(preprocessing)
    said = metadata(how, None if labels is None else read_labels(labels))
    if said and chosen == "rovder":
        raise ModelError("--preprocessing and --labels: rovder's files have no place for them")
    model = load(source)
    model = replace(model, metadata={**model.metadata, **said}) if said else model
    try:
        same = Path(target).samefile(source)
    except (OSError, ValueError):  # one of them is no file
        same = False
    if same:
        raise ModelError(f"{target}: IN and OUT are the same file")
    model.save(target, chosen)
    nbytes = Path(target).stat().st_size
    report: dict[str, Any] = {
        "model": model.name,
        "file": target,
        "format": chosen,
        "bytes": nbytes,
        "inputs": {info.name: list(info.shape) for info in model.inputs},
        "outputs": list(model.outputs),
        "metadata": dict(model.metadata),
    }
    if as_json:
        print_json(report)
    else:
        Screen(wide).say(f"{model.name} as {chosen}: {target}, {size(nbytes)}")
