"""Classifiers by glnn, by ncnn's Vulkan, by NumPy and by ONNX Runtime's CPU, each in turn.

Every library runs in a process of its own, on one image of 224 x 224, round after round. ncnn has
the same weights (`ncnn_format.py` writes its files), activations fused into the layers before them,
all options as they are by default but those of 16 and 8 bits, which are off. Its results and glnn's
are held against ONNX Runtime's. The least and the median by the clock, and the CPU's time in all
threads, which says more where other programs run. Ratios are of the least.

    python -m benchmarks.ncnn_vulkan --networks networks
    python -m benchmarks.ncnn_vulkan --networks networks --only resnet18,vgg16 --rounds 5 --json
    python -m benchmarks.ncnn_vulkan --networks networks --against ../before

It needs ncnn, onnx and ONNX Runtime. --networks has the files of `benchmarks.export_networks`;
VGG-16 is glnn's own, with seeded weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click

import glnn
from benchmarks.command import run
from benchmarks.ncnn_format import Writer
from benchmarks.record import machine
from benchmarks.tables import table
from benchmarks.trees import HERE, against_option, few_rounds_option
from glnn.backends import open_backend
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError
from glnn.validation.comparison import relative_error

NAMES = ("squeezenet1_1", "mobilenet_v2", "resnet18", "resnet50", "vgg16")
REFERENCE = "onnxruntime"
LIBRARIES = (REFERENCE, "compute", "ncnn", "cpu")
"""Ours are those that are named as backends."""
AGAINST = "compute before"
WRONG = 1e-3
"""A relative error above it is no rounding."""
SHAPE = (3, 224, 224)
SCRIPT = Path(__file__).with_name("ncnn_one.py")
Times = dict[str, float]


def _written(name: str, networks: Path, folder: Path) -> Path:
    """The .onnx file of the network so called, written if it is glnn's own; ncnn's beside it."""
    import onnx

    path = networks / f"{name}.onnx"
    if name == "vgg16" and not path.exists():
        path = folder / f"{name}.onnx"
        glnn.load("vgg16").save(path)
    if not path.exists():
        raise GlnnError(f"--networks: {networks} has no {name}.onnx")
    Writer(onnx.load(path), SHAPE).save(folder, name)
    return path


def _once(library: str, tree: Path, path: Path, folder: Path, seconds: float) -> Times:
    """What one process of `library` finds, with the project of `tree`; its outputs are kept."""
    backend = library.split()[0]
    out = folder / f"{library.replace(' ', '-')}.npy"
    script = SCRIPT.read_text("utf-8")
    asked = backend, str(path), str(folder), str(seconds), str(out)
    command = [sys.executable, "-c", script, *asked]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise click.ClickException(f"{library}: {path.name}: {said[-1]}")
    found: Times = json.loads(done.stdout.splitlines()[-1])
    return found


def _error(library: str, folder: Path, name: str) -> float:
    """How far the outputs of `library` are from the reference's. Raises GlnnError beyond WRONG."""
    files = (folder / f"{which.replace(' ', '-')}.npy" for which in (library, REFERENCE))
    found, expected = (np.load(path).reshape(-1) for path in files)
    off = relative_error(found, expected.astype(np.float64))
    if not off <= WRONG:
        raise GlnnError(f"{name}: {library} differs from ONNX Runtime by {off:.1e}")
    return off


def _row(rounds: dict[str, list[Times]], errors: dict[str, float]) -> dict[str, Any]:
    """Of each library its least, median, CPU's and first time, and what `compute` is to it."""
    found: dict[str, Any] = {}
    for library, times in rounds.items():
        found[library] = {
            "least_ms": min(one["least"] for one in times),
            "median_ms": float(np.median([one["median"] for one in times])),
            "cpu_ms": min(one["cpu"] for one in times),
            "first_ms": min(one["first"] for one in times),
            "error": errors[library],
        }
    ours = found["compute"]
    for library in found:
        other = found[library]
        other["ratio"] = ours["least_ms"] / other["least_ms"]
        other["cpu_ratio"] = ours["cpu_ms"] / other["cpu_ms"]
    return found


@click.command(help=__doc__)
@click.option(
    "--networks",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="The folder with the .onnx files.",
)
@click.option("--only", help=f"Networks, by commas, of {', '.join(NAMES)}.")
@click.option("--libraries", help=f"By commas, of {', '.join(LIBRARIES)}.")
@against_option
@few_rounds_option
@click.option("--seconds", type=click.FloatRange(0), default=2.0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    networks: Path,
    only: str | None,
    libraries: str | None,
    against: Path | None,
    rounds: int,
    seconds: float,
    as_json: bool,
) -> None:
    names = _chosen("--only", only, NAMES)
    wanted = _chosen("--libraries", libraries, LIBRARIES)
    trees = dict.fromkeys(dict.fromkeys((REFERENCE, "compute", *wanted)), HERE)
    trees |= {AGAINST: against.resolve()} if against else {}
    about = {**machine(open_backend("compute").device), "rounds": str(rounds)}
    rows: dict[str, dict[str, Any]] = {}
    with progress(not as_json) as bar, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        task = bar.add_task("measuring", total=len(names) * rounds * len(trees))
        for name in names:
            path = _written(name, networks.resolve(), folder)
            found: dict[str, list[Times]] = {library: [] for library in trees}
            for _ in range(rounds):
                for library, tree in trees.items():
                    bar.update(task, description=f"{name} by {library}")
                    found[library].append(_once(library, tree, path, folder, seconds))
                    bar.advance(task)
            rows[name] = _row(found, {library: _error(library, folder, name) for library in trees})
    if as_json:
        print(json.dumps({**about, "rows": rows}, indent=2))
        return
    shown = table("network", "", ">least ms", ">median ms", ">CPU ms", ">ours over it", ">by CPU")
    for name, row in rows.items():
        for library, one in row.items():
            times = (one["least_ms"], one["median_ms"], one["cpu_ms"], one["ratio"])
            shown.add(name, library, *map(number, (*times, one["cpu_ratio"])))
    Screen().say(", ".join(f"{k} {v}" for k, v in about.items()))
    Screen().show(shown, "one image of 224 x 224, from host to host")


def _chosen(option: str, asked: str | None, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(part.strip() for part in asked.split(",")) if asked else known
    for name in names:
        if name not in known:
            raise GlnnError(f"{option}: no {name!r}, expected some of {', '.join(known)}")
    return names


if __name__ == "__main__":
    run(main)
