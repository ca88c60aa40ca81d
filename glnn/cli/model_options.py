"""Options of the verbs that run a model: weights of a file of their own, traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import rich_click as click

from glnn.cli.options import OutputFile, check_writable
from glnn.model import Model, load
from glnn.profiling import Trace

Command = TypeVar("Command", bound=Callable[..., Any])


def weights_option(command: Command) -> Command:
    """`--weights FILE`."""
    return click.option(
        "--weights",
        metavar="FILE",
        help="The model's parameters by PyTorch's names: .safetensors, .npz, .pt or .pth.",
    )(command)


def load_with(source: str, weights: str | None) -> Model:
    """Load the model called `source`, with the parameters in the file `weights` where it is given.

    The model's own need not be there then. Raises ModelError for every fault.
    """
    if weights is None:
        return load(source)
    model = load(source, untrained=True)
    model.load_state_dict(weights)
    return model


def trace_option(command: Command) -> Command:
    """`--trace`."""
    return click.option(
        "--trace",
        metavar="FILE",
        type=OutputFile(),
        callback=_trace_file,
        help="Write what the host and the GPU did when, in Chrome's trace event format.",
    )(command)


def _trace_file(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    if path is not None:
        check_writable("--trace", path)
    return path


def save_trace(trace: Trace, path: str) -> dict[str, Any]:
    """Write `trace` to `path`, and what `--json` has to say of it."""
    trace.save(path)
    return {"trace": {"file": path, "events": trace.events}}
