"""Convolutions by every kernel that computes them, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

import glnn
from benchmarks import documents
from benchmarks.clblast_network import joined
from benchmarks.tables import table
from glnn.backends import Backend
from glnn.cli.screen import Screen, number
from glnn.compiler import prepare
from glnn.errors import GlnnError
from glnn.graph.operators import Conv2d
from glnn.kernels.op_spec import OpSpec
from glnn.profiling.timing import time_work

Array = NDArray[np.float32]
IMPLICIT = ("implicit_gemm", "implicit_gemm_tiled", "implicit_gemm_split_k")
PAPER = "im2col_morton"  # Rovder 2019's
NAMES = (
    *IMPLICIT,
    *("winograd_2", "winograd_4", PAPER, "im2row_ab_ik", "im2row_abt_ik", "im2row_abt_ki"),
    *("kn2row", "direct_nhwc", "direct"),
)
NO_BIAS = ("im2row_abt_ki",)
HOPELESS = 2.0  # seconds


def convolutions(model: glnn.Model, batch: int) -> dict[str, OpSpec]:
    """Each distinct convolution of `model`, by its first layer's name."""
    (given,) = model.inputs
    found: dict[str, OpSpec] = {}
    for entry in joined(model, given.with_batch(batch)).schedule.entries:
        spec = replace(entry.spec, known_layouts=())
        if isinstance(spec.op, Conv2d) and spec not in found.values():
            found[entry.lowered.name.split(" + ")[0]] = spec
    return found


def operands(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Random operands, the weight scaled so that results keep the size of the input."""
    generator = np.random.default_rng(0)
    made = {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    made["weight"] /= np.float32(np.sqrt(np.prod(shapes["weight"][1:])))
    return made


def milliseconds(
    backend: Backend, spec: OpSpec, given: Mapping[str, Array], kernel: str | None, repeat: int
) -> float | None:
    """Median milliseconds on the device by one kernel; None where the backend refuses it."""
    op, epilogue = spec.op, spec.epilogue
    if kernel in NO_BIAS:
        given, epilogue = {name: given[name] for name in ("x", "weight")}, None
    shapes = {name: array.shape for name, array in given.items()}
    if backend.why_not(OpSpec.create(op, shapes, {}, epilogue), kernel) is not None:
        return None
    try:
        work, _ = prepare(op, given, backend, kernel, epilogue=epilogue)
        return 1e3 * time_work(backend, work, repeat, hopeless=HOPELESS).seconds
    except GlnnError:
        return None


def measure(
    bar: Progress, backend: Backend, model: glnn.Model, batch: int, repeat: int
) -> list[dict[str, Any]]:
    """A row for each distinct convolution of `model`: milliseconds by kernel."""
    found = convolutions(model, batch)
    task = bar.add_task("variants", total=len(found) * (1 + len(NAMES)))
    rows: list[dict[str, Any]] = []
    for name, spec in found.items():
        given = operands(spec.shapes)
        times: dict[str, float | None] = {}
        for kernel in NAMES:
            times[kernel] = milliseconds(backend, spec, given, kernel, repeat)
            bar.advance(task)
        default = milliseconds(backend, spec, given, None, repeat)
        bar.advance(task)
        best = min((t for k in IMPLICIT if (t := times[k]) is not None), default=None)
        paper = times[PAPER]
        rows.append(
            {
                "layer": name,
                "gflop": spec.op.cost_of(spec.op_shapes).flops / 1e9,
                "ms": times,
                "default": backend.choose(spec).name,
                "default_ms": default,
                "paper_over_implicit": paper / best if paper and best else None,
            }
        )
    return rows


def show(out: Screen, rows: Sequence[dict[str, Any]]) -> None:
    """Print a line for each kernel, and what Rovder 2019 expected of the last one."""
    claim = documents.figure("rovder_2019", "vgg16_figure_7").claims[0]
    shown = table("", *(f">{row['layer']}" for row in rows))
    for name in NAMES:
        title = f"{name}, no bias, no ReLU" if name in NO_BIAS else name
        shown.add(title, *(number(row["ms"][name]) for row in rows))
    shown.add("default", *(number(row["default_ms"]) for row in rows))
    shown.add("default's name", *(row["default"] for row in rows))
    ratios = (number(row["paper_over_implicit"]) for row in rows)
    shown.add(f"{PAPER} / implicit, {claim.least:g} expected", *ratios)
    out.show(shown, "ms of each convolution")
