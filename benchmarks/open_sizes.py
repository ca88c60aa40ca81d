"""What a size costs that a model is given for the first time: CPU time beside a second run of it.

    python -m benchmarks.open_sizes rec.onnx --input x --shape 1,3,48,W --sizes W=64:1200
        [--count 200] [--backend compute] [--versus-onnxruntime] [--json]

The shapes are drawn from the ranges of their symbols. Of each the first run and the second are
timed in CPU seconds of the process. The table has medians over the shapes and their ratio, how
many plans were made whole (regimes: docs/architecture.md) and the median time of such a first run,
and with --versus-onnxruntime its runs' CPU time.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks.command import run
from benchmarks.tables import table
from glnn import InferenceSession
from glnn.cli.screen import Screen, number
from glnn.errors import GlnnError

Array = NDArray[Any]


def parsed_shape(text: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The shape that `text` is, with numbers for its symbols. Raises GlnnError."""
    try:
        return tuple(sizes[part] if part in sizes else int(part) for part in text.split(","))
    except ValueError:
        raise GlnnError(f"--shape: expected sizes and symbols by commas, got {text!r}") from None


def ranges(texts: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """The least and the greatest size of each symbol. Raises GlnnError."""
    try:
        pairs = (text.split("=") for text in texts)
        ends = {name: part.split(":") for name, part in pairs}
        return {name: (int(low), int(high)) for name, (low, high) in ends.items()}
    except ValueError:
        raise GlnnError(f"--sizes: expected NAME=LEAST:MOST, got {' '.join(texts)}") from None


def seconds(session: Any, feeds: dict[str, Array]) -> float:
    """CPU seconds of a run."""
    start = process_time()
    session.run(None, feeds)
    return process_time() - start


@click.command(help=__doc__)
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option("--input", "names", multiple=True, required=True, help="An input's name.")
@click.option("--shape", "shapes", multiple=True, required=True, help="Its shape, as 1,3,48,W.")
@click.option("--sizes", multiple=True, required=True, help="A symbol's range, as W=64:1200.")
@click.option("--count", default=200, show_default=True, help="How many shapes.")
@click.option("--seed", default=0, show_default=True)
@click.option("--backend", default="compute", show_default=True)
@click.option("--versus-onnxruntime", "versus", is_flag=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    model: Path,
    names: tuple[str, ...],
    shapes: tuple[str, ...],
    sizes: tuple[str, ...],
    count: int,
    seed: int,
    backend: str,
    versus: bool,
    as_json: bool,
) -> None:
    known, draw = ranges(sizes), np.random.default_rng(seed)
    session = InferenceSession(model, backend)
    types = {info.name: info.type for info in session.get_inputs()}
    theirs = None
    if versus:
        import onnxruntime

        theirs = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    first: list[float] = []
    again: list[float] = []
    peer: list[float] = []
    made: list[float] = []
    for _ in range(count):
        here = {name: int(draw.integers(low, high + 1)) for name, (low, high) in known.items()}
        feeds: dict[str, Array] = {}
        for name, text in zip(names, shapes, strict=True):
            shape = parsed_shape(text, here)
            if "int" in types.get(name, ""):
                feeds[name] = draw.integers(0, 2, shape)
            else:
                feeds[name] = draw.standard_normal(shape, np.float32)
        before = regimes(session)
        took = seconds(session, feeds)
        (first if regimes(session) == before else made).append(took)
        again.append(seconds(session, feeds))
        if theirs is not None:
            theirs.run(None, feeds)
            peer.append(seconds(theirs, feeds))
    found = {
        "model": model.name,
        "backend": backend,
        "shapes": count,
        "regimes": regimes(session),
        "making_one_s": median(made) if made else None,
        "new_shape_s": median(first) if first else None,
        "again_s": median(again),
        "ratio": median(first) / median(again) if first else None,
        "onnxruntime_s": median(peer) if peer else None,
    }
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    rows = table("", ">")
    for name, value in found.items():
        shown = "-" if value is None else value
        rows.add(name, number(shown) if isinstance(shown, float) else str(shown))
    Screen().show(rows)


def regimes(session: InferenceSession) -> int:
    """How many plans were made whole until now."""
    return sum(map(len, getattr(session._executor, "regimes", {}).values()))


if __name__ == "__main__":
    run(main)
