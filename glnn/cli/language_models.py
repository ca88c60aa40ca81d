"""`glnn plan` of language models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich_click as click
from click import get_current_context
from click.core import ParameterSource

from glnn.backends import Backend, open_backend
from glnn.cli.options import parameter_name, print_json
from glnn.cli.screen import Column, Screen, Table, figures, size
from glnn.core.progress_bar import report_work
from glnn.generation.architectures import decoder
from glnn.generation.memory import MemoryPlan, plan_memory
from glnn.generation.model_file import open_model


def is_given(name: str) -> bool:
    """Return True where the user gave the parameter called `name` of the current command."""
    return get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def refuse_options(names: Iterable[str], kind: str) -> None:
    """Raise UsageError where the user gave one of these parameters.

    names: as the command's function has them. kind: the models that they are not for.
    """
    parameters = {one.name: one for one in get_current_context().command.params}
    for name in names:
        if is_given(name):
            raise click.UsageError(f"{parameter_name(parameters[name])} is not for {kind}")


def plan_language_model(
    model: str, backend: str, gpu: str | None, limits: str | None, context: int | None,
    sequences: int, as_json: bool, wide: bool,
) -> None:  # fmt: skip
    """Show the memory that a language model would take."""
    opened = open_backend(backend, gpu=gpu, limits=limits)
    with report_work("reading", model), open_model(Path(model)) as file:
        config, most = file.config, file.context(context)
        graph = decoder(config, file.weights, most, sequences)
        memory = plan_memory(graph, opened, most, sequences)
    available = opened.perform(opened.available)
    report = {
        "model": Path(model).name,
        "architecture": config.architecture,
        "backend": opened.name,
        "device": _device(opened),
        "context": most,
        "sequences": sequences,
        "weight_bytes": memory.weights,
        "cache_bytes": memory.caches,
        "runs": [asdict(run) for run in memory.runs],
        "activation_bytes": memory.activations,
        "peak_bytes": memory.peak,
        "available_bytes": available,
        "fits": None if available is None else memory.peak <= available,
    }
    if as_json:
        print_json(report)
    else:
        _show_memory(report, memory, Screen(wide))


def _device(backend: Backend) -> str:
    device = backend.device
    return device.capabilities.renderer if device else "CPU (NumPy)"


def _show_memory(report: dict[str, Any], memory: MemoryPlan, out: Screen) -> None:
    title = f"{report['model']} on {report['backend']}, {report['device']}: "
    title += f"{report['sequences']} sequences of {report['context']} tokens"
    heads = ("tokens, up to", "next tokens, up to", "activations")
    runs = Table((Column("run", least=None), *map(figures, heads)))
    for run in memory.runs:
        kind = "begun before the last was read" if run.ahead else "of tokens from the host"
        runs.add(kind, f"{run.tokens}", f"{run.logits}", size(run.nbytes))
    out.show(runs, title)
    totals = Table((Column("memory", least=24), figures("size"), Column("")))
    totals.add("weights", size(memory.weights))
    totals.add("caches", size(memory.caches))
    totals.add("activations of all runs", size(memory.activations))
    verdict = "more than is free" if report["fits"] is False else ""
    totals.add("predicted peak", size(memory.peak), verdict)
    totals.add("free", size(report["available_bytes"]))
    out.show(totals)
