"""The four perceptrons of Rovder 2017, chapter 10, at batch 100: table 10.5 and figure 10.1.

Wall times have the transfers in and out in them, for glnn and for every peer that has them. Kernel
times are of a network whose inputs and weights are there already, run over and over: by GL's timer
where it is believed, PyTorch's by CUDA events around a CUDA graph. Utilisation is the operations of
the products over the kernel time and the rate that benchmarks.roofline finds here.

    python -m benchmarks.mlp
    python -m benchmarks.mlp --batch 100 --repeat 50 --json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

import glnn
from benchmarks import beside, documents
from benchmarks.command import run
from benchmarks.documents import Figure, Ours
from benchmarks.record import machine, milliseconds
from benchmarks.roofline import peak_gflops
from benchmarks.tables import table
from glnn.cli.screen import Screen, number, progress
from glnn.errors import DeviceError, GlnnError
from glnn.layers import Linear, ReLU
from glnn.profiling import time_work
from glnn.validation.comparison import relative_error

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Array = NDArray[np.float32]
KernelTime = Callable[[int], float | None]
"""Median milliseconds on the device of so many runs; None where nothing tells."""
DOCUMENT = Path(__file__).parent / "documents" / "rovder_2017.toml"
HIS = "glnn compute, Rovder's pipeline"
ROWS = {"NumPy": "numpy", "glnn compute": "gpu", HIS: "his_pipeline", "PyTorch CUDA": "tensorflow"}
"""What table 10.5 and figure 10.1 call them; PyTorch stands where TensorFlow did."""
PIPELINE = {"matmul": "morton_4_2", "pointwise": "bias_grouped_morton_4_2, activation_unbound"}
"""What section 9.3 settles on: each in a launch of its own."""
LEAST_SECONDS = 0.02  # between two CUDA events
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Contender:
    """A way to run a perceptron from host to host, and what tells of its kernels."""

    name: str
    run: Callable[[], Array]
    kernel_ms: KernelTime = lambda _: None


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
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "glnn compute": ("compute", {}),
        "glnn compute, morton_4_2": ("compute", {"kernels": {"matmul": "morton_4_2"}}),
        HIS: ("compute", {"kernels": PIPELINE, "fused": False}),
        "glnn feedback": ("feedback", {}),
    }
    for title, (backend, options) in ways.items():
        try:
            session = glnn.InferenceSession(built, backend, **options)
        except DeviceError:
            continue
        yield _ours(title, session, x)

    def by_numpy() -> Array:
        y = x
        for i, layer in enumerate(made):
            y = y @ layer.weight.T + layer.bias
            y = y if i == len(made) - 1 else np.maximum(y, 0)
        return y

    yield Contender("NumPy", by_numpy)
    yield from _torch(made, x)


def _ours(title: str, session: glnn.InferenceSession, x: Array) -> Contender:
    feed = {session.get_inputs()[0].name: x}

    def kernel_ms(repeat: int) -> float:
        plan = session.plan({name: array.shape for name, array in feed.items()})
        plan.upload(feed)
        return 1e3 * time_work(plan.backend, plan.launch, min(repeat, 10)).seconds

    return Contender(title, lambda: session.run(None, feed)[0], kernel_ms)


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

    yield Contender("PyTorch CUDA", run, partial(_by_events, torch, net, host.cuda()))


def _by_events(torch: Any, net: Any, x: Any, repeat: int) -> float:
    """Median milliseconds of `net` on `x`, as a CUDA graph between two CUDA events."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode():
        with torch.cuda.stream(side):  # cuBLAS makes its workspace before anything is captured
            for _ in range(3):
                net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            net(x)

    def each(count: int) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(count):
            graph.replay()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) / count

    count = 1 + int(1e3 * LEAST_SECONDS / max(each(10), 1e-3))
    return median(each(count) for _ in range(min(repeat, 10)))


@click.command(help=__doc__)
@click.option("--batch", type=click.IntRange(1), default=100, show_default=True)
@click.option("--repeat", type=click.IntRange(1), default=100, show_default=True)
@click.option("--models", help="Some of them, by commas.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(batch: int, repeat: int, models: str | None, as_json: bool) -> None:
    known = perceptrons()
    chosen = models.split(",") if models else list(known)
    if unknown := [name for name in chosen if name not in known]:
        raise GlnnError(f"--models: no {unknown[0]!r}, expected {', '.join(known)}")
    theirs = documents.figure("rovder_2017", "table_10_5")
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
            for way in contenders(made, name, x):
                error = relative_error(way.run(), exact.astype(np.float64))
                if not error <= TOLERANCE:
                    raise GlnnError(f"{way.name}: {name} is off by {error:.1e}, no time is given")
                times = milliseconds(way.run, repeat)
                kernel_ms = way.kernel_ms(repeat)
                printed = theirs.rows.get(ROWS.get(way.name, ""), {}).get(name)
                row = {"model": name, "name": way.name, "error": error, **times}
                row |= {"gflops": flops / times["median_ms"] / 1e6, "kernel_ms": kernel_ms}
                share = flops / kernel_ms / 1e6 / peak if peak and kernel_ms else None
                rows.append({**row, "utilisation": share, "theirs_ms": printed})
    result = {**machine(device), "batch": batch, "peak_gflops": peak, "rows": rows}
    compared = list(_compared(rows))
    result["beside"] = [one for which in compared for one in beside.rows(*which)]
    result["claims"] = [one for which in compared for one in beside.claims(*which)]
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print(result, compared)


def _compared(rows: list[dict[str, Any]]) -> Iterator[tuple[Figure, Ours, str]]:
    """Table 10.5, its speed-ups and figure 10.1: ours by row and column, and their unit."""
    named = [(ROWS[row["name"]], row) for row in rows if row["name"] in ROWS]
    times = {(name, row["model"]): row["median_ms"] for name, row in named}
    speedups = {
        (name, model): times["numpy", model] / ms
        for (name, model), ms in times.items()
        if ("numpy", model) in times and name != "numpy"
    }
    shares = {(name, row["model"]): row["utilisation"] for name, row in named if row["utilisation"]}
    found = (("table_10_5", times, "ms"), ("table_10_5_speedup", speedups, "x"))
    for key, ours, unit in (*found, ("figure_10_1", shares, "fraction of peak")):
        yield documents.figure("rovder_2017", key), ours, unit


def _print(result: dict[str, Any], compared: list[tuple[Figure, Ours, str]]) -> None:
    out, rows = Screen(), result["rows"]
    out.say(", ".join(f"{k} {v}" for k, v in list(result.items())[:8]))
    heads = (">ms", ">GFLOP/s", ">kernel ms", ">of the peak", ">error", ">Rovder's ms")
    shown = table("model", "", *heads)
    for row in rows:
        used = "-" if row["utilisation"] is None else f"{100 * row['utilisation']:.1f}%"
        printed_ms = "-" if row["theirs_ms"] is None else f"{row['theirs_ms']:g}"
        shown.add(
            row["model"], row["name"], f"{row['median_ms']:.3f}", f"{row['gflops']:.4g}",
            number(row["kernel_ms"]), used, f"{row['error']:.1e}", printed_ms,
        )  # fmt: skip
    out.show(shown, "ms and GFLOP/s with transfers, of the peak by the kernels' time")
    for which in compared:
        beside.show(out, *which)


if __name__ == "__main__":
    run(main)
