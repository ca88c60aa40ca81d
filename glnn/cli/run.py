"""`glnn run`: a model on images or arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from glnn.cli.dump import Dump, dump_options
from glnn.cli.feeds import read_feeds
from glnn.cli.inputs import Inputs, batch_size, read_inputs
from glnn.cli.options import (
    backend_option,
    device_options,
    fuse_option,
    kernel_option,
    precision_option,
    print_json,
)
from glnn.cli.results import Classes, Outputs, classifies, run_once
from glnn.cli.screen import Screen, progress
from glnn.cli.traced import save_trace, trace_option
from glnn.cli.weights import load_with, weights_option
from glnn.profiling import Trace
from glnn.running.options import PREFERENCES
from glnn.session import InferenceSession

Done = tuple[InferenceSession, Dump | None, Classes | Outputs]
"""What ran, what was dumped, and what was found."""


@click.command()
@click.argument("model")
@click.argument("inputs", nargs=-1)
@backend_option
@click.option(
    "--prefer",
    type=click.Choice(PREFERENCES),
    default=PREFERENCES[0],
    show_default=True,
    help="What auto takes: the fastest here, or gpu to keep the CPU free.",
)
@click.option(
    "--top", type=click.IntRange(1), default=1, show_default=True, help="Classes to show."
)
@click.option(
    "--batch", type=click.IntRange(1), help="Samples a run: 100, or as many as the model takes."
)
@weights_option
@kernel_option
@fuse_option
@precision_option
@dump_options
@trace_option
@device_options
def run(
    model: str,
    inputs: tuple[str, ...],
    backend: str,
    prefer: str,
    top: int,
    batch: int | None,
    weights: str | None,
    kernels: dict[str, str],
    fused: bool,
    precision: str,
    dump: str | None,
    tensors: tuple[str, ...],
    trace: str | None,
    gpu: str | None,
    limits: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Classify INPUTS with MODEL: a bundled name (lenet), a .json or an .onnx file.

    An input is an image (PNG, JPEG, WEBP, BMP, GIF, TIFF, PPM), or a .npy or .npz file of float32
    or uint8 samples; an array `label` in an .npz gives the right answers. Without inputs, lenet
    takes the bundled digits. Of a model that gives no scores of classes, what it gives is summed
    up, and --dump writes it; one of several inputs takes an .npz file with an array for each.

    \b
    Examples:
      glnn run lenet
      glnn run lenet photo.png --top 3 --precision float16
      glnn run net.onnx samples.npz --backend feedback --json
      glnn run lenet photo.png --trace trace.json     (for ui.perfetto.dev)
      glnn run detector.onnx x.npy --dump result.npz --tensor heat
      glnn run lenet photo.png --dump tensors.npz --tensor c1 --tensor 'sigmoid*'
    """
    loaded = load_with(model, weights)
    options: dict[str, Any] = {"gpu": gpu, "limits": limits, "kernels": kernels, "fused": fused}
    options |= {"precision": precision, "prefer": prefer}
    opened = partial(InferenceSession, loaded, backend, **options)
    traced = None if trace is None else Trace()
    into = partial(Dump.asked, dump, tensors, loaded)
    if classifies(loaded):
        samples = read_inputs(loaded, inputs, model)
        count = batch_size(loaded, batch, 100)
        session, dumped, found = _classes(samples, count, top, opened, into, traced, not as_json)
    else:
        feeds = read_feeds(loaded, inputs, model, batch, {}, most=100, random=False)
        session, dumped, found = _outputs(feeds, opened, into, traced)
    more = {} if dumped is None else {"dump": dumped.to_json()}
    more |= save_trace(traced, trace) if traced is not None and trace is not None else {}
    about = _about(session)
    if as_json:
        print_json({**about, **found.to_json(), **more})
        return
    out = Screen(wide)
    software = f" (software: {about['software']}, on the CPU)" if about["software"] else ""
    found.show(out, f"{about['backend']}: {about['device']}{software}")
    if dumped is not None:
        dumped.show(out)
    if session.choice is not None:
        out.say(f"auto takes {session.choice}")
    if trace is not None:
        out.say(f"traced to {trace}, which ui.perfetto.dev shows")


def _about(session: InferenceSession) -> dict[str, Any]:
    """What ran, and where; choice: what `auto` took, None where there was nothing to choose."""
    device, choice = session.backend.device, session.choice
    return {
        "model": session.model.name,
        "backend": session.backend.name,
        "device": device.capabilities.renderer if device else "CPU (NumPy)",
        "software": device.capabilities.software if device else None,
        "choice": choice.to_json() if choice else None,
    }


def _classes(
    samples: Inputs,
    batch: int,
    top: int,
    opened: Callable[[], InferenceSession],
    into: Callable[[int], Dump | None],
    trace: Trace | None,
    shown: bool,
) -> Done:
    """Of all samples."""
    dumped = into(-(-len(samples.x) // batch))
    session = opened()
    scores = _run(session, samples.x, batch, dumped, trace, shown)
    return session, dumped, Classes.of(samples, scores, top)


def _outputs(
    feeds: Mapping[str, NDArray[Any]],
    opened: Callable[[], InferenceSession],
    into: Callable[[int], Dump | None],
    trace: Trace | None,
) -> Done:
    """Of one run."""
    dumped = into(1)
    session = opened()
    return session, dumped, run_once(session, feeds, dumped, trace)


def _run(
    session: InferenceSession,
    x: NDArray[Any],
    batch: int,
    dump: Dump | None,
    trace: Trace | None,
    shown: bool,
) -> NDArray[np.float32]:
    """The scores of all samples."""
    name = session.get_inputs()[0].name
    results = []
    with progress(shown) as bar:
        for start in bar.track(range(0, len(x), batch), description="classifying"):
            part = x[start : start + batch]
            if len(part) < batch and isinstance(session.get_inputs()[0].shape[0], int):
                part = np.resize(part, (batch, *x.shape[1:]))  # the model takes no fewer
            if trace is None:
                results.append(session.run(None, {name: part})[0])
            else:
                found = trace.run(session.plan({name: part.shape}), {name: part})
                results.append(found[session.model.outputs[0]])
            if dump is not None:
                dump.write(session.intermediates({name: part}, dump.names))
    return np.concatenate(results)[: len(x)]
