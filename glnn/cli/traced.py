"""`--trace`, of the verbs that run a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import rich_click as click

from glnn.cli.options import check_writable
from glnn.cli.output_files import OutputFile
from glnn.profiling import Trace

Command = TypeVar("Command", bound=Callable[..., Any])


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
