"""VGG-16 by its parts: glnn's compute backend beside PyTorch, ONNX Runtime and CLBlast.

The setting is that of Rovder 2019, figures 4, 7 and 8: one image; its numbers stand beside ours.
Peers are measured in the same run where they are installed. A layer of several kernels is shown as
their sum, each waited for. Absolute times mean something on a GPU only; elsewhere read the ratios.

    python -m benchmarks.vgg16
    python -m benchmarks.vgg16 --kernel conv2d=im2col_morton --repeat 20 --json
    python -m benchmarks.vgg16 --variants --no-peers --plot vgg16.png
    python -m benchmarks.vgg16 --document --configuration C
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click

from benchmarks import documents, staircase, variants
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
    total,
)
from benchmarks.record import machine
from benchmarks.staircase import PAPER
from benchmarks.tables import table
from glnn.backends import open_backend
from glnn.cli.options import kernel_option
from glnn.cli.screen import Screen, number, progress
from glnn.errors import GlnnError
from glnn.model.load import vgg16

SECTIONS = ("vgg16_figure_4", "vgg16_section_5_1")


@click.command(help=__doc__)
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True)
@click.option("--size", type=click.IntRange(32), default=224, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=50, show_default=True)
@click.option("--configuration", type=click.Choice(["C", "D"]), default="D", show_default=True)
@click.option("--document", is_flag=True, help="Only what Rovder 2019 measured, as it did.")
@kernel_option
@click.option("--variants", "with_variants", is_flag=True, help="Also each convolution, by kernel.")
@click.option("--peers/--no-peers", default=True, help="Also time other libraries.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw the times to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    batch: int,
    size: int,
    repeat: int,
    configuration: str,
    document: bool,
    kernels: dict[str, str],
    with_variants: bool,
    peers: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    check_picture(plot)
    if document and (kernels or with_variants or plot):
        raise GlnnError("--document: expected no --kernel, no --variants and no --plot beside it")
    backend = open_backend("compute")
    model = vgg16(configuration, size=size)
    x = np.random.default_rng(0).random((batch, 3, size, size), dtype=np.float32)
    exact = model(x, backend="cpu")
    about = {"batch": batch, "size": size, "configuration": configuration}
    result: dict[str, Any] = {**machine(backend.device), **about}
    if document:
        _document(model, x, exact, repeat, peers, result, as_json)
        return
    with progress(not as_json) as bar:
        ways = contenders(model, x, ("compute", "feedback"), kernels, peers=peers)
        result["rows"] = rows = list(measured(bar, ways, exact, repeat))
        found, layers = layered(bar, model, x, repeat, kernels)
        add_peer(layers, rows)
        result |= {"layers": layers, "timer": found.timer, "kernel_ms": found.kernel_ms}
        result["parts"] = _parts(layers, rows)
        if with_variants:
            result["variants"] = variants.measure(bar, backend, model, batch, min(repeat, 7))
            result["gemm_share"] = _gemm_share(bar, model, x, repeat)
    if plot is not None:
        draw(rows, plot)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print(Screen(), result)


def _document(
    model: Any, x: Any, exact: Any, repeat: int, peers: bool, about: dict[str, Any], as_json: bool
) -> None:
    """Measure and print what Rovder 2019 measured."""
    with progress(not as_json) as bar:
        rows = list(staircase.measured(bar, model, x, exact, repeat, peers))
    if as_json:
        entries, claims = staircase.compared(rows)
        print(json.dumps({**about, "steps": rows, "beside": entries, "claims": claims}, indent=2))
        return
    out = Screen()
    out.say(", ".join(f"{k} {v}" for k, v in about.items()))
    staircase.show(out, rows)


def _parts(layers: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Seconds of the convolutions and of everything, ours and then the document's."""
    here: dict[str, dict[str, float | None]] = {
        "glnn, sum of wall times": {"convolutions": total(layers, "wall_ms", "conv2d")},
        "glnn, sum of kernel times": {
            "convolutions": total(layers, "kernel_ms", "conv2d"),
            "total": total(layers, "kernel_ms"),
        },
        "CLBlast, sum of wall times": {"convolutions": total(layers, "clblast_ms", "conv2d")},
    }
    here["glnn, sum of wall times"]["total"] = total(layers, "wall_ms")
    here["CLBlast, sum of wall times"]["total"] = total(layers, "clblast_ms")
    for row in rows:
        here[f"{row['name']}, a whole run"] = {"total": row["median_ms"]}
    parts = [
        {"who": who, "device": "here", **{k: None if v is None else v / 1e3 for k, v in t.items()}}
        for who, t in here.items()
    ]
    for key in SECTIONS:
        figure = documents.figure("rovder_2019", key)
        parts += [
            {"who": f"Rovder 2019, {row}", "device": figure.device, **times}
            for row, times in figure.rows.items()
        ]
    return parts


def _gemm_share(bar: Any, model: Any, x: Any, repeat: int) -> dict[str, float] | None:
    """The GEMM's share of the paper's pipeline here and there; None where it cannot run."""
    try:
        _, layers = layered(bar, model, x, repeat, {"conv2d": PAPER})
    except GlnnError:
        return None
    theirs = documents.figure("rovder_2019", "vgg16_figure_7").rows[PAPER]["gemm"]
    return {"here": staircase.gemm_share({"layers": layers}), "theirs": theirs}


def _print(out: Screen, result: dict[str, Any]) -> None:
    hidden = ("rows", "layers", "parts", "variants", "gemm_share")
    out.say(", ".join(f"{k} {v}" for k, v in result.items() if k not in hidden))
    show_rows(out, result["rows"])
    show_layers(out, "by layer", result["layers"], {})
    shown = table("", "device", ">convolutions", ">total")
    for part in result["parts"]:
        sums = (number(part.get(key)) for key in ("convolutions", "total"))
        shown.add(part["who"], part["device"], *sums)
    out.show(shown, "seconds")
    for claim in documents.figure("rovder_2019", "vgg16_figure_8").claims:
        out.say(f"  Rovder 2019 says: {claim}")
    if ratio := over_clblast(result["rows"]):
        out.say(f"  here: {result['rows'][0]['name']} is {ratio:.2f} times as fast as clblast")
    if "variants" in result:
        variants.show(out, result["variants"])
        if share := result["gemm_share"]:
            out.say(
                f"the GEMM's share of {PAPER}: {100 * share['here']:.0f}%, "
                f"Rovder 2019: {100 * share['theirs']:.0f}%"
            )


if __name__ == "__main__":
    run(main)
