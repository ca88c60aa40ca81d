"""The four perceptrons of Rovder 2017, chapter 10, at batch 100: wall time, rate, utilisation.

Transfers in and out are included for glnn, and for every peer that has them.

    python -m benchmarks.mlp
    python -m benchmarks.mlp --batch 100 --repeat 50 --json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

import glnn
from benchmarks import documents
from benchmarks.command import run
from benchmarks.record import machine, milliseconds
from benchmarks.roofline import peak_gflops
from benchmarks.tables import table
from glnn.cli.screen import Screen, progress
from glnn.errors import DeviceError
from glnn.layers import Linear, ReLU

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Array = NDArray[np.float32]
Contender = tuple[str, Callable[[], Array]]
DOCUMENT = Path(__file__).parent / "documents" / "rovder_2017.toml"
ROWS = {"NumPy": "numpy", "glnn compute": "gpu"}  # what table 10.5 calls them


def perceptrons() -> dict[str, list[int]]:
    """The widths of each, from the input to the output."""
    widths: dict[str, list[int]] = tomllib.loads(DOCUMENT.read_text("utf-8"))["models"]["widths"]
    return widths


def layers(widths: list[int]) -> list[Linear]:
    """Seeded Linear layers of these widths."""
    return [Linear(a, b, seed=i) for i, (a, b) in enumerate(pairwise(widths))]


def model(made: list[Linear], name: str) -> glnn.Model:
    """The perceptron of these layers: ReLU after each but the last."""
    stack: list[Any] = []
    for layer in made:
        stack += [layer, ReLU()]
    return glnn.Model.sequential(stack[:-1], (made[0].in_features,), name=name)


def contenders(made: list[Linear], name: str, x: Array) -> Iterator[Contender]:
    """glnn by each backend that opens, with the chosen kernels and with the document's; peers."""
    built = model(made, name)
    ways: dict[str, tuple[str, dict[str, str]]] = {
        "glnn compute": ("compute", {}),
        "glnn compute, morton_4_2": ("compute", {"matmul": "morton_4_2"}),
        "glnn feedback": ("feedback", {}),
    }
    for title, (backend, kernels) in ways.items():
        try:
            session = glnn.InferenceSession(built, backend, kernels=kernels)
        except DeviceError:
            continue
        feed = {session.get_inputs()[0].name: x}
        yield title, lambda session=session, feed=feed: session.run(None, feed)[0]  # type: ignore[misc]

    def by_numpy() -> Array:
        y = x
        for i, layer in enumerate(made):
            y = y @ layer.weight.T + layer.bias
            y = y if i == len(made) - 1 else np.maximum(y, 0)
        return y

    yield "NumPy", by_numpy
    yield from _torch(made, x)


def _torch(made: list[Linear], x: Array) -> Iterator[Contender]:
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    stack: list[Any] = []
    for layer in made:
        linear = torch.nn.Linear(layer.in_features, layer.out_features)
        linear.weight.data = torch.from_numpy(layer.weight.copy())
        linear.bias.data = torch.from_numpy(np.array(layer.bias))
        stack += [linear, torch.nn.ReLU()]
    net = torch.nn.Sequential(*stack[:-1]).cuda().eval()
    host = torch.from_numpy(x)

    @torch.inference_mode()  # type: ignore[untyped-decorator, unused-ignore]
    def run() -> Array:
        result: Array = net(host.cuda()).cpu().numpy()
        return result

    yield "PyTorch CUDA", run


@click.command()
@click.option("--batch", type=click.IntRange(1), default=100, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=100, show_default=True)
@click.option("--models", help="Some of them, by commas.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(batch: int, repeat: int, models: str | None, as_json: bool) -> None:
    """Time the four perceptrons, and compare with what else is installed."""
    known = perceptrons()
    chosen = models.split(",") if models else list(known)
    if unknown := [name for name in chosen if name not in known]:
        raise click.BadParameter(f"--models: no {unknown[0]!r}, expected {', '.join(known)}")
    (theirs,) = (f for f in documents.figures("rovder_2017") if f.key == "table_10_5")
    device = glnn.Device()
    peak = peak_gflops(device) if device.capabilities.compute else None
    rows: list[dict[str, Any]] = []
    row: dict[str, Any]
    with progress(not as_json) as bar:
        for name in bar.track(chosen, description="timing"):
            made = layers(known[name])
            x = np.random.default_rng(0).random((batch, known[name][0]), dtype=np.float32)
            flops = 2 * batch * sum(a * b for a, b in pairwise(known[name]))
            exact = model(made, name)(x, backend="cpu")
            for title, run in contenders(made, name, x):
                error = float(np.linalg.norm(run() - exact) / np.linalg.norm(exact))
                times = milliseconds(run, repeat)
                rate = flops / times["median_ms"] / 1e6
                share = rate / peak if peak and title.startswith("glnn") else None
                printed = theirs.rows.get(ROWS.get(title, ""), {}).get(name)
                row = {"model": name, "name": title, "error": error, **times}
                rows.append({**row, "gflops": rate, "utilisation": share, "theirs_ms": printed})
    result = {**machine(device), "batch": batch, "peak_gflops": peak, "rows": rows}
    if as_json:
        print(json.dumps(result, indent=2))
        return
    out = Screen()
    out.say(", ".join(f"{k} {v}" for k, v in result.items() if k != "rows"))
    heads = (">ms", ">GFLOP/s", ">of the peak", ">error", ">Rovder's ms")
    shown = table("model", "", *heads)
    for row in rows:
        used = "-" if row["utilisation"] is None else f"{100 * row['utilisation']:.1f}%"
        printed_ms = "-" if row["theirs_ms"] is None else f"{row['theirs_ms']:g}"
        shown.add(
            row["model"], row["name"], f"{row['median_ms']:.3f}", f"{row['gflops']:.4g}", used,
            f"{row['error']:.1e}", printed_ms,
        )  # fmt: skip
    out.show(shown, "transfers included")


if __name__ == "__main__":
    run(main)
