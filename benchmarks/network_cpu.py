"""CPU time of networks on `cpu` beside ONNX Runtime, one thread each.

Both run each network in turn in one process; the least CPU time of a run in any round is taken. The
files are those of `benchmarks.export_networks`; further arguments are .onnx files, whose open sizes
are 1 unless `--size` says otherwise. The peak is of what NumPy has at once in a run of glnn's:
tensors and scratch, without weights. OPENBLAS_CORETYPE, where it is set, stands in the result: it
has OpenBLAS take other kernels than its own choice.

    python -m benchmarks.network_cpu --networks networks
    python -m benchmarks.network_cpu --networks networks --only resnet18,lstm --rounds 5 --json
    python -m benchmarks.network_cpu recogniser.onnx --size x=1,3,48,320
"""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from benchmarks import zoo
from benchmarks.command import run
from benchmarks.record import machine
from benchmarks.small_models import (
    RUNTIME,
    measured,
    numbers_of,
    one_thread,
    random_feeds,
    sizes_of,
)
from benchmarks.tables import table
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError
from glnn.session import InferenceSession

CORES = "OPENBLAS_CORETYPE"


def peak_bytes(path: Path, feeds: dict[str, NDArray[Any]]) -> int:
    """Return the peak of the bytes that NumPy allocates in a run."""
    session = InferenceSession(path, "cpu")
    session.run(None, feeds)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    session.run(None, feeds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak - before


def row(
    path: Path,
    network: zoo.Network | None,
    rounds: int,
    make_feeds: Callable[[Any], dict[str, NDArray[Any]]],
) -> dict[str, Any]:
    """Measure the file `path`, which has `network` of the zoo, if that is given.

    make_feeds: makes the inputs of other networks from ONNX Runtime's session.
    """
    feeds: dict[str, NDArray[Any]] = {}

    def feed(session: Any) -> dict[str, NDArray[Any]]:
        feeds.update({zoo.INPUT: network.input(1)} if network else make_feeds(session))
        return feeds

    times = measured(path, ("cpu",), rounds, feed)
    return {
        "network": path.stem,
        "onnxruntime_ms": times["us"][RUNTIME] / 1e3,
        "cpu_ms": times["us"]["cpu"] / 1e3,
        "ratio": times["ratio"]["cpu"],
        "error": times["error"]["cpu"],
        "peak_bytes": peak_bytes(path, feeds),
    }


@click.command(help=__doc__)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--networks",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of the .onnx files of benchmarks.export_networks.",
)
@click.option("--only", help="Names of networks, by commas.")
@click.option("--size", "sizes", multiple=True, help="Of an input: name=1,576. May be repeated.")
@click.option("--number", "numbers", multiple=True, help="That fills an input: sigma=0.5.")
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    files: tuple[Path, ...],
    folder: Path | None,
    only: str | None,
    sizes: tuple[str, ...],
    numbers: tuple[str, ...],
    rounds: int,
    as_json: bool,
) -> None:
    try:
        import onnxruntime
    except ImportError:
        raise GlnnError("networks on a CPU need the package onnxruntime") from None
    if folder is None and not files:
        raise GlnnError("expected --networks or names of .onnx files, got neither")
    models: list[tuple[Path, zoo.Network | None]] = [(path, None) for path in files]
    if folder is not None:
        models = [(folder / f"{one.name}.onnx", one) for one in zoo.chosen(only)] + models
    for path, _ in models:
        if not path.exists():
            raise GlnnError(f"--networks: no file {path}; benchmarks.export_networks writes it")
    make_feeds = partial(random_feeds, sizes=sizes_of(sizes), numbers=numbers_of(numbers))
    rows = []
    with progress() as bar:
        task = bar.add_task("measuring", total=len(models))
        for path, network in models:
            bar.update(task, description=path.stem)
            rows.append(row(path, network, rounds, make_feeds))
            bar.advance(task)
    about = {**machine(None), "numpy": np.__version__, RUNTIME: onnxruntime.__version__}
    about[CORES] = os.environ.get(CORES, "")
    if as_json:
        print(json.dumps({**about, "rounds": rounds, "rows": rows}, indent=2))
        return
    shown = table("network", ">ONNX Runtime ms", ">cpu ms", ">ratio", ">error", ">peak MB")
    for one in rows:
        shown.add(
            one["network"],
            *(number(one[key]) for key in ("onnxruntime_ms", "cpu_ms", "ratio")),
            f"{one['error']:.1e}",
            number(one["peak_bytes"] / 1e6),
        )
    Screen().show(shown, ", ".join(f"{key} {value}" for key, value in about.items()))


if __name__ == "__main__":
    one_thread("benchmarks.network_cpu")
    run(main)
