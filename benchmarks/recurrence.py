"""All steps of recurrent layers by kernels, those with other parameters too, beside their bound.

A line for each case and kernel: microseconds of a run and of a step, by the GPU's own timer where
that is believed, the share that the operations alone would take at the greatest FP32 rate, which is
measured in the same run, and the relative error against NumPy in float64. The first line of a case
is of the kernel that glnn chooses. With --rows each of these is tried, too: a kernel's name, with
values of its parameters. A case is a network of `NETWORKS` and its samples, as lstm_8.

    python -m benchmarks.recurrence
    python -m benchmarks.recurrence --cases lstm_8,gru_1 --rows "dataflow ROWS=1,2; wavefront"
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import rich_click as click

from benchmarks.candidates import KernelSelection
from benchmarks.command import run
from benchmarks.roofline import intensities, roof_option
from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.compiler import prepare
from glnn.core.types import Array
from glnn.errors import GlnnError
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.operators import Recurrence
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.profiling.timing import time_work
from glnn.validation.comparison import relative_error


@dataclass(frozen=True)
class Cell:
    """The expressions of a unit's new states, and how many sums, inputs and states it has."""

    exprs: tuple[Expr, ...]
    gates: int
    states: int


def lstm_cell() -> Cell:
    """Return an LSTM's, of gates i, o, f and g: its states are output, cell and four biases."""
    gates = [call("add", call("add", Arg(i), Arg(4 + i)), Arg(10 + i)) for i in range(4)]
    i, o, f = (call("sigmoid", gate) for gate in gates[:3])
    cell = call("add", call("mul", f, Arg(9)), call("mul", i, call("tanh", gates[3])))
    return Cell((call("mul", o, call("tanh", cell)), cell), 4, 6)


def gru_cell() -> Cell:
    """Return a GRU's, of gates r, z and n: its states are output and the bias of the sum of n."""
    r, z = (call("sigmoid", call("add", Arg(i), Arg(3 + i))) for i in range(2))
    n = call("tanh", call("add", Arg(5), call("mul", r, call("add", Arg(2), Arg(7)))))
    kept = call("mul", z, call("sub", Arg(6), n))
    return Cell((call("add", n, kept),), 3, 2)


NETWORKS = {
    "lstm": (lstm_cell(), 1, 2, 64, 256),
    "lstm_2x512": (lstm_cell(), 1, 2, 64, 512),
    "lstm_3x256": (lstm_cell(), 1, 3, 64, 256),
    "lstm_layer": (lstm_cell(), 1, 1, 64, 256),
    "lstm_both_ways": (lstm_cell(), 2, 1, 64, 256),
    "lstm_small": (lstm_cell(), 1, 1, 64, 128),
    "lstm_wide": (lstm_cell(), 1, 1, 64, 1024),
    "gru": (gru_cell(), 1, 2, 64, 256),
    "gru_layer": (gru_cell(), 1, 1, 64, 256),
}
"""Cell, directions, layers, steps and units, by name."""
BATCHES = (1, 8, 32)


def case(name: str) -> tuple[Recurrence, dict[str, Array]]:
    """Return the recurrence of a network and a batch, as lstm_8, and random operands.

    Raises GlnnError for an unknown name.
    """
    network, _, batch = name.rpartition("_")
    if not (batch.isdecimal() and int(batch) > 0 and network in NETWORKS):
        known = ", ".join(NETWORKS)
        raise GlnnError(f"--cases: expected {known}, each with a batch as in lstm_8, got {name!r}")
    cell, directions, layers, steps, units = NETWORKS[network]
    b, chains, generator = int(batch), directions * layers, np.random.default_rng(0)
    shapes = {
        "x": (directions, steps, b, cell.gates, units),
        "weight": (2 * layers - 1 if layers > 1 else directions, cell.gates, units, units),
        "state": (chains, b, units // 4, cell.states, 4),
    }
    operands = {k: generator.standard_normal(shape, np.float32) for k, shape in shapes.items()}
    operands["weight"] /= np.float32(units**0.5)
    return Recurrence(cell.exprs, layers=layers), operands


def measured(
    backend: GlBackend, op: Recurrence, operands: dict[str, Array], kernel: Kernel, exact: Array
) -> tuple[float, float]:
    """Return the seconds of a run, and the error of its result."""

    def work() -> tuple[float, float]:
        launch, out = prepare(op, operands, backend, kernel)
        launch()
        error = relative_error(out.pull(), exact)
        launch, _ = prepare(op, operands, backend, kernel)
        return time_work(backend, launch, 3, 0.02).seconds, error

    return backend.perform(work)


@click.command(help=__doc__)
@click.option("--cases", help="By commas; of all networks with batches of 1, 8 and 32 by default.")
@click.option("--rows", default="", help="Kernels with parameters, separated by semicolons.")
@roof_option
def main(cases: str | None, rows: str, roof_mib: int) -> None:
    names = cases.split(",") if cases else [f"{n}_{b}" for n in NETWORKS for b in BATCHES]
    texts = [row.strip() for row in rows.split(";") if row.strip()]
    selections = [KernelSelection.parse("recurrence", text) for text in texts]
    backend = open_backend("compute")
    assert isinstance(backend, GlBackend)
    rates = intensities(backend.device, numbers=roof_mib << 18)
    flops = max(r["gflops"] for r in rates) * 1e9
    print(f"{flops / 1e12:.3g} TFLOP/s")
    for name in names:
        op, operands = case(name)
        spec = OpSpec.create(op, {n: array.shape for n, array in operands.items()}, {})
        bound = spec.op.cost_of(spec.op_shapes).flops / flops
        steps = operands["x"].shape[1] + op.layers - 1
        exact = op.compute({n: one.astype(float) for n, one in operands.items()})
        print(f"{name}: {steps} steps")
        candidates = (k for one in selections for k in one.candidates(backend, spec))
        for kernel in (backend.choose(spec), *candidates):
            text = " ".join((kernel.name, *(f"{n}={v}" for n, v in kernel.defaults.items())))
            try:
                time, error = measured(backend, op, operands, kernel, exact)
            except GlnnError as refusal:
                print(f"  {text}: {str(refusal).splitlines()[0]}", flush=True)
                continue
            us = f"{1e6 * time:8.1f} us {1e6 * time / steps:6.2f} a step {bound / time:4.0%}"
            print(f"  {us}  {text}, off by {error:.1e}", flush=True)


if __name__ == "__main__":
    run(main)
