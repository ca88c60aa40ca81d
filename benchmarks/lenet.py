"""LeNet, transfers included: glnn's backends beside PyTorch, ONNX Runtime and CLBlast.

The setting is that of Rovder 2019, figure 3 and table 2: one batch of 100 images; its numbers stand
beside ours. Its baseline runs here too, by its kernels: loops for convolutions and Rovder 2017's
first product. Peers are measured in the same run where they are installed. Absolute times mean
something on a GPU only; elsewhere read the ratios.

    python -m benchmarks.lenet
    python -m benchmarks.lenet --batch 100 --repeat 500 --json
    python -m benchmarks.lenet --onnx lenet.onnx --plot lenet.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click

import glnn
from benchmarks import beside, documents
from benchmarks.command import check_picture, run
from benchmarks.networks import (
    add_peer,
    contenders,
    draw,
    layered,
    measured,
    over_clblast,
    show_layers,
    show_rows,
)
from benchmarks.record import machine
from benchmarks.staircase import BASELINE
from glnn.backends import NAMES
from glnn.cli.screen import Screen, progress
from glnn.data import digits
from glnn.errors import DeviceError

THEIRS = {"c1": "C1", "s2": "S2", "c3": "C3", "s4": "S4", "c5": "F5", "f6": "F6", "total": "total"}


@click.command(help=__doc__)
@click.option("--batch", type=click.IntRange(1), default=100, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=200, show_default=True)
@click.option("--onnx", type=click.Path(exists=True, path_type=Path), help="LeNet as .onnx.")
@click.option("--peers/--no-peers", default=True, help="Also time other libraries.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw the times to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    batch: int, repeat: int, onnx: Path | None, peers: bool, plot: Path | None, as_json: bool
) -> None:
    check_picture(plot)
    model = glnn.load("lenet")
    images, _ = digits()
    x = np.resize(images[:, None].astype(np.float32) / np.float32(255), (batch, 1, 28, 28))
    exact = model(x, backend="cpu")
    device = glnn.InferenceSession(model).backend.device
    result: dict[str, Any] = {**machine(device), "batch": batch, "repeat": repeat}
    with progress(not as_json) as bar:
        ways = contenders(model, x, NAMES, onnx=onnx, peers=peers)
        result["rows"] = rows = list(measured(bar, ways, exact, repeat))
        try:
            found, layers = layered(bar, model, x, repeat, None)
        except DeviceError:  # no compute backend, no kernels to time
            layers = []
        else:
            add_peer(layers, rows)
            result |= {"timer": found.timer, "layers": layers, "kernel_ms": found.kernel_ms}
            _, result["baseline"] = layered(bar, model, x, repeat, BASELINE)
            result["beside"], result["claims"] = _compared(result["baseline"], layers)
    for row in layers:
        row["theirs_ms"] = _theirs(row["layer"])
    if plot is not None:
        draw(rows, plot)
    if as_json:
        print(json.dumps(result, indent=2))
        return
    out = Screen()
    hidden = ("rows", "layers", "baseline", "beside", "claims")
    out.say(", ".join(f"{k} {v}" for k, v in result.items() if k not in hidden))
    show_rows(out, rows)
    if ratio := over_clblast(rows):
        says = documents.figure("rovder_2019", "lenet_table_2").claims[0]
        out.say(f"  Rovder 2019 says: {says}; here {rows[0]['name']} is {ratio:.2f} times\n")
    if layers:
        names = [*(row["layer"] for row in layers), "total"]
        heads = {f"2019 {who}": who for who in ("wall", "kernel", "overhead", "clblast")}
        theirs = {
            head: {name: _theirs(name)[who] for name in names if who in _theirs(name)}
            for head, who in heads.items()
        }
        show_layers(out, "by layer, and Rovder 2019's ms on a Mali-T628", layers, theirs)
        baseline = [{**row, "clblast_ms": None} for row in result["baseline"]]
        show_layers(out, "the same by the kernels of its baseline", baseline, theirs)
        beside.say(out, result["claims"])


def _compared(
    baseline: list[dict[str, Any]], layers: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Table 2 and its speed-ups beside its baseline here, CLBlast and glnn's own kernels."""
    keys = {"wall": "wall_ms", "kernel": "kernel_ms", "overhead": "overhead_ms"}
    ours: dict[tuple[str, str], float] = {}
    for who, rows, key in (
        *((who, baseline, key) for who, key in keys.items()),
        ("clblast", layers, "clblast_ms"),
        ("glnn", layers, "wall_ms"),
    ):
        times = {THEIRS[name]: row[key] for row in rows if (name := _first(row)) in THEIRS}
        if None not in times.values():
            ours |= {(who, name): ms for name, ms in times.items()}
            ours[who, "total"] = sum(times.values())
    over = {
        (who, name): ours["clblast", name] / ms
        for (who, name), ms in ours.items()
        if who in ("wall", "glnn") and ("clblast", name) in ours
    }
    table, ratios = (
        documents.figure("rovder_2019", f"lenet_table_2{part}") for part in ("", "_speedup")
    )
    entries = [*beside.rows(table, ours, "ms"), *beside.rows(ratios, over, "x")]
    return entries, beside.claims(table, ours, "ms")


def _first(row: dict[str, Any]) -> str:
    """The first layer of those that `row` is of."""
    return str(row["layer"]).split(" + ")[0]


def _theirs(layer: str) -> dict[str, float]:
    """Table 2 of Rovder 2019 for one of our layers, or for all: ms by what was timed."""
    column = THEIRS.get(layer.split(" + ")[0], "")
    table = documents.figure("rovder_2019", "lenet_table_2").rows
    return {who: times[column] for who, times in table.items() if column in times}


if __name__ == "__main__":
    run(main)
