"""`glnn view`: the graph of a model's plan as one HTML file, with kernels, layouts and times."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Any

import rich_click as click

from glnn.backends import Backend, open_backend
from glnn.cli.bench import profile_sessions
from glnn.cli.feeds import read_feeds
from glnn.cli.graph_page import graph_page
from glnn.cli.model_options import ModelName
from glnn.cli.options import (
    FileName,
    OutputFile,
    WritingCommand,
    backend_option,
    batch_option,
    device_options,
    fuse_option,
    kernel_option,
    precision_option,
    print_json,
    shape_option,
)
from glnn.cli.plan import plan_report
from glnn.cli.screen import Screen
from glnn.core.fileio import atomic_write
from glnn.core.plural import count_of
from glnn.core.types import Shape
from glnn.errors import ModelError, fault
from glnn.model import Model, load
from glnn.profiling import Profile
from glnn.session import InferenceSession


@click.command(cls=WritingCommand)
@click.argument("model", type=ModelName())
@click.argument("inputs", nargs=-1, type=FileName())
@click.option(
    "--output",
    metavar="FILE",
    type=OutputFile(unnamed=lambda parameters: f"{Path(parameters['model']).stem}.html"),
    help="The file to write; NAME.html in this folder, if not given.",
)
@click.option("--time", "timed", is_flag=True, help="Run the model, and show each step's time.")
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="With --time: runs to take medians of.",
)
@click.option("--show", is_flag=True, help="Open the file in a browser.")
@backend_option
@batch_option
@shape_option
@kernel_option
@fuse_option
@precision_option
@device_options
def view(
    model: str,
    inputs: tuple[str, ...],
    output: str,
    timed: bool,
    repeat: int,
    show: bool,
    backend: str,
    batch: int | None,
    shapes: dict[str, Shape],
    kernels: dict[str, str],
    fused: bool,
    precision: str,
    gpu: str | None,
    limits: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Draw the steps in which MODEL would run as a graph, in one HTML file.

    A box is a step of the plan, as `glnn plan` has it: one or several layers that run together. Its
    colour says the kind of operator. Chosen by a click, it says its shapes, kernel, layouts and
    memory; with --time how long it takes, too. The file can be searched, loads nothing, and works
    in any browser without a network. INPUTS, --batch and --shape are as for `glnn plan`.

    \b
    Examples:
      glnn view lenet
      glnn view net.onnx --output net.html --time --show
      glnn view bert.onnx --batch 8 --shape sequence=128 --backend feedback
    """
    loaded = load(model)
    path = Path(output)
    opened = open_backend(backend, gpu=gpu, limits=limits, gl_kernels=bool(kernels))
    report = plan_report(loaded, model, inputs, opened, batch, shapes, kernels, fused, precision)
    times: dict[str, float] = {}
    clock = ""
    if timed:
        options: dict[str, Any] = {"kernels": kernels, "gpu": gpu, "limits": limits}
        options |= {"fused": fused, "precision": precision}
        profile = _profile(
            loaded, inputs, model, opened, batch, shapes, repeat, options, not as_json
        )
        by_timer = profile.kernel_ms is not None
        clock = "the device's timer" if by_timer else "the clock, each step waited for"
        times = {s.name: s.wall_ms if s.kernel_ms is None else s.kernel_ms for s in profile.layers}
    try:
        with atomic_write(path) as stream:
            stream.write(graph_page(report, times, clock).encode())
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {fault(error)}") from None
    if show:
        webbrowser.open(path.resolve().as_uri())
    steps = len(report["steps"])
    if as_json:
        about = {"model": loaded.name, "backend": report["backend"], "file": str(path)}
        print_json({**about, "steps": steps, "times_ms": times, "clock": clock or None})
    else:
        Screen(wide).say(f"{path}: {count_of(steps, 'step')} on {report['backend']}")


def _profile(
    model: Model,
    inputs: tuple[str, ...],
    name: str,
    backend: Backend,
    batch: int | None,
    shapes: dict[str, Shape],
    repeat: int,
    options: dict[str, Any],
    shown: bool,
) -> Profile:
    """Time each step of the model on `backend`. name: the model's on the command line."""
    feeds = read_feeds(model, inputs, name, batch, shapes)
    sessions = {backend.name: InferenceSession(model, backend.name, **options)}
    return profile_sessions(sessions, feeds.arrays, repeat, None, shown)[backend.name]
