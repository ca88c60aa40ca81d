"""`glnn run`: a model on images or arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from glnn.cli.dump import Dump, dump_options
from glnn.cli.inputs import Inputs, batch_size, read_inputs
from glnn.cli.options import (
    backend_option,
    device_options,
    kernel_option,
    precision_option,
    print_json,
    save_trace,
    trace_option,
)
from glnn.cli.screen import Column, Screen, Table, figures, progress
from glnn.errors import ShapeError
from glnn.model import load
from glnn.model.tensor import show
from glnn.profiling import Trace
from glnn.session import InferenceSession

SHOWN = 10


@click.command()
@click.argument("model")
@click.argument("inputs", nargs=-1)
@backend_option
@click.option(
    "--top", type=click.IntRange(1), default=1, show_default=True, help="Classes to show."
)
@click.option(
    "--batch", type=click.IntRange(1), help="Samples a run: 100, or as many as the model takes."
)
@kernel_option
@precision_option
@dump_options
@trace_option
@device_options
def run(
    model: str,
    inputs: tuple[str, ...],
    backend: str,
    top: int,
    batch: int | None,
    kernels: dict[str, str],
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
    takes the bundled digits.

    \b
    Examples:
      glnn run lenet
      glnn run lenet photo.png --top 3 --precision float16
      glnn run net.onnx samples.npz --backend feedback --json
      glnn run lenet photo.png --trace trace.json     (for ui.perfetto.dev)
      glnn run lenet photo.png --dump tensors.npz --tensor c1 --tensor 'sigmoid*'
    """
    loaded = load(model)
    result = loaded.tensors[loaded.outputs[0]]
    if len(result.shape) != 2:
        got = show(result.shape)
        raise ShapeError(f"{model}: expected class scores (N, classes), it gives {got}")
    samples = read_inputs(loaded, inputs, model)
    count = batch_size(loaded, batch, 100)
    dumped = Dump.asked(dump, tensors, loaded, runs=-(-len(samples.x) // count))
    session = InferenceSession(
        loaded, backend, gpu=gpu, limits=limits, kernels=kernels, precision=precision
    )
    traced = None if trace is None else Trace()
    scores = _run(session, samples.x, count, dumped, traced, shown=not as_json)
    more = {} if dumped is None else {"dump": dumped.to_json()}
    more |= save_trace(traced, trace) if traced is not None and trace is not None else {}
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    accuracy = None if samples.labels is None else float((order[:, 0] == samples.labels).mean())
    if as_json:
        print_json(_document(session, samples, scores, order, accuracy) | more)
        return
    out = Screen(wide)
    _show(out, session, samples, scores, order, accuracy)
    if dumped is not None:
        dumped.show(out)
    if trace is not None:
        out.say(f"traced to {trace}, which ui.perfetto.dev shows")


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


def _device(session: InferenceSession) -> str:
    device = session.backend.device
    return device.capabilities.renderer if device else "CPU (NumPy)"


def _document(
    session: InferenceSession,
    samples: Inputs,
    scores: NDArray[np.float32],
    order: NDArray[np.intp],
    accuracy: float | None,
) -> dict[str, Any]:
    return {
        "model": session.model.name,
        "backend": session.backend.name,
        "device": _device(session),
        "predictions": order[:, 0].tolist(),
        "top": [
            [{"class": int(c), "score": float(scores[i, c])} for c in row]
            for i, row in enumerate(order)
        ],
        "inputs": list(samples.names),
        "accuracy": accuracy,
        "notes": list(samples.notes),
    }


def _show(
    out: Screen,
    session: InferenceSession,
    samples: Inputs,
    scores: NDArray[np.float32],
    order: NDArray[np.intp],
    accuracy: float | None,
) -> None:
    for note in samples.notes:
        out.say(note)
    labelled = [figures("label")] if samples.labels is not None else []
    ranks = [f"{i + 1}." for i in range(order.shape[1])] if order.shape[1] > 1 else ["class"]
    heads = [figures(head, i) for i, rank in enumerate(ranks) for head in (rank, "score")]
    rows = Table((Column("input"), *labelled, *heads))
    for i, name in enumerate(samples.names[:SHOWN]):
        cells = [str(samples.labels[i])] if samples.labels is not None else []
        for c in order[i]:
            cells += [str(c), f"{scores[i, c]:.4f}"]
        rows.add(name, *cells)
    out.show(rows)
    if len(samples.names) > SHOWN:
        out.say(f"... and {len(samples.names) - SHOWN} more (all of them with --json)")
    out.say(f"{len(samples.names)} samples on {session.backend.name}: {_device(session)}")
    if accuracy is not None:
        out.say(f"accuracy {100 * accuracy:.2f}%")
