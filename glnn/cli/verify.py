"""`glnn verify`: every layer against NumPy in float64."""

from __future__ import annotations

import rich_click as click

from glnn.cli.feeds import advise_shapes, read_feeds
from glnn.cli.model_options import ModelName
from glnn.cli.options import (
    FileName,
    backend_option,
    device_options,
    fuse_option,
    kernel_option,
    precision_option,
    print_json,
    refuse_nan,
    shape_option,
)
from glnn.cli.screen import Column, Screen, Table, figures
from glnn.core.types import Shape
from glnn.model import load
from glnn.profiling.verify import TOLERANCES
from glnn.profiling.verify import verify as verify_plan
from glnn.session import InferenceSession

DIVERGED = 1


@click.command()
@click.argument("model", type=ModelName())
@click.argument("inputs", nargs=-1, type=FileName())
@backend_option
@click.option(
    "--batch", type=click.IntRange(1), help="Samples: at most 100, or as many as the model takes."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    callback=refuse_nan,
    help="Greatest error allowed: 1e-5 unless given, 2e-3 with weights of float16.",
)
@shape_option
@kernel_option
@fuse_option
@precision_option
@device_options
@click.pass_context
def verify(
    context: click.Context,
    model: str,
    inputs: tuple[str, ...],
    backend: str,
    batch: int | None,
    tolerance: float | None,
    shapes: dict[str, Shape],
    kernels: dict[str, str],
    fused: bool,
    precision: str,
    gpu: str | None,
    limits: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Compare every layer of MODEL with float64 and name the first that diverges.

    The error is |got - expected| / |expected| over a layer's whole result, expected of the weights
    as the model has them, before they are rounded to float16, all layers before it in float64, too.
    Where it exceeds the tolerance, the layer is looked at by itself, of what those before it gave,
    and its error is relative to the terms that it adds up, which may cancel: it diverges where that
    exceeds the tolerance, and the exit code is 1. INPUTS are files, as for bench: a model of
    several inputs takes NAME=FILE for each, or an .npz file with an array for each; inputs without
    a file are given numbers at random, but for lenet, which takes the bundled digits.

    \b
    Examples:
      glnn verify lenet
      glnn verify lenet --backend feedback --limits es31-minimum --json
      glnn verify net.onnx --shape x=1,3,64,96
      glnn verify bert.onnx input_ids=ids.npy --shape sequence=128
    """
    loaded = load(model)
    feeds = read_feeds(loaded, inputs, model, batch, shapes, most=100)
    session = InferenceSession(
        loaded, backend, gpu=gpu, limits=limits, kernels=kernels, fused=fused, precision=precision
    )
    allowed = TOLERANCES[precision] if tolerance is None else tolerance
    with advise_shapes(loaded, inputs, shapes):
        plan = session.plan(feeds.shapes, keep=True, feeds=feeds.arrays)
    result = verify_plan(plan, feeds.arrays, allowed)
    if as_json:
        print_json({"model": loaded.name, "inputs": feeds.to_json(), **result.to_json()})
    else:
        columns = (Column("layer"), Column("op", 2), Column("kernel", 1))
        rows = Table((*columns, figures("error"), Column("")))
        for layer in result.layers:
            verdict = "ok" if layer.ok else "diverges"
            verdict += "" if layer.own is None else f", {layer.own:.2e} by itself"
            rows.add(layer.name, layer.op, layer.kernel, f"{layer.error:.2e}", verdict)
        out = Screen(wide)
        out.show(rows)
        first = result.first_divergence
        out.say(f"worst {result.worst:.2e}, allowed {allowed:g}, on {result.backend}")
        if count := sum(layer.ok and layer.own is not None for layer in result.layers):
            more = "layer is" if count == 1 else "layers are"
            out.say(f"{count} {more} off by more, as those before and terms that cancel have it")
        if first is not None:
            out.say(f"the first layer that diverges is {first}")
    if result.first_divergence is not None:
        context.exit(DIVERGED)
