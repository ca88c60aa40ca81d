"""A model whose host steps alternate with small work: with that on the device, and with the host.

Each island of the model is a step in float64, which no kernel computes, then a softmax, a
transposition and a scale of a few numbers. Both plans run in turn, and on the cpu backend a third;
what is to be compared is the ratio. Answers are held against the cpu backend's.

    python -m benchmarks.host_steps
    python -m benchmarks.host_steps --islands 20 --numbers 256 --backend feedback --json
"""

from __future__ import annotations

import json
from statistics import median
from time import perf_counter, process_time

import numpy as np
import rich_click as click

from benchmarks.command import run
from benchmarks.record import machine
from glnn.backends import open_backend
from glnn.cli.screen import Column, Screen, Table, figures, number
from glnn.compiler import Executor
from glnn.core.types import TensorType
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph
from glnn.graph.operators import Matmul, Pointwise, Reshape, Softmax, Transpose
from glnn.validation.comparison import relative_error

LEFT, ASKED, CPU = "left to the host", "on the device", "cpu"


def alternating(islands: int, numbers: int) -> Graph:
    """A product, `islands` of steps of the host's and small work, and a product."""
    builder = Builder("alternating")
    x = builder.input("x", TensorType((1, numbers)))
    weight = np.random.default_rng(1).standard_normal((numbers, numbers), np.float32)
    last = builder.add(Matmul(), x, constant(weight, "weight"), name="first")[0]
    wide = call("cast_float32", call("mul", call("cast_float64", Arg(0)), Arg(1)))
    two = constant(np.array(2.0), "two")
    for i in range(islands):
        (last,) = builder.add(Pointwise(wide), last, two, name=f"float64 {i}")
        (last,) = builder.add(Reshape((2, numbers // 2)), last, name=f"halves {i}")
        (last,) = builder.add(Softmax(1), last, name=f"softmax {i}")
        (last,) = builder.add(Transpose((1, 0)), last, name=f"turned {i}")
        (last,) = builder.add(Reshape((1, numbers)), last, name=f"row {i}")
    (last,) = builder.add(Matmul(), last, constant(weight, "weight"), name="last")
    return builder.graph([last])


@click.command(help=__doc__)
@click.option("--islands", type=click.IntRange(1), default=10, show_default=True)
@click.option("--numbers", type=click.IntRange(4), default=64, show_default=True)
@click.option(
    "--backend", type=click.Choice(["compute", "feedback"]), default="compute", show_default=True
)
@click.option("--repeat", type=click.IntRange(1), default=200, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(islands: int, numbers: int, backend: str, repeat: int, as_json: bool) -> None:
    numbers -= numbers % 2
    graph = alternating(islands, numbers)
    executors = {
        LEFT: Executor(graph, backend),
        ASKED: Executor(graph, backend, without=["leave"]),
        CPU: Executor(graph, "cpu"),
    }
    feeds = {"x": np.random.default_rng(2).standard_normal((1, numbers), np.float32)}
    answers = {name: next(iter(one.run(feeds).values())) for name, one in executors.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in executors}
    for done in range(repeat):
        for name, executor in executors.items():
            busy, start = process_time(), perf_counter()
            executor.run(feeds)
            times[name].append((perf_counter() - start, process_time() - busy))
        if done + 1 in (1, repeat // 4, repeat // 2, repeat):
            click.echo(f"{done + 1} of {repeat} rounds", err=True)
    rows = []
    for name, executor in executors.items():
        steps = executor.plan({"x": feeds["x"].shape}).steps
        row: dict[str, float] = {
            "steps": len(steps),
            "host_steps": sum(step.host for step in steps),
            "ms": 1e3 * median(wall for wall, _ in times[name]),
            "least_ms": 1e3 * min(wall for wall, _ in times[name]),
            "cpu_ms": 1e3 * median(busy for _, busy in times[name]),
            "error": relative_error(answers[name], answers[CPU]),
        }
        rows.append((name, row))
    about = {**machine(open_backend(backend).device), "backend": backend}
    if as_json:
        print(
            json.dumps(
                {**about, "islands": islands, "numbers": numbers, "rows": dict(rows)}, indent=2
            )
        )
        return
    heads = [figures(head) for head in ("steps", "the host's", "ms", "least", "CPU ms", "error")]
    shown = Table((Column("small work"), *heads))
    for name, row in rows:
        shown.add(name, *map(number, row.values()))
    Screen().show(shown, ", ".join(f"{k} {v}" for k, v in about.items()))


if __name__ == "__main__":
    run(main)
