"""`glnn bench` and `glnn plan` of language models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rich_click as click
from click import get_current_context
from click.core import ParameterSource

from glnn.backends import Backend, open_backend
from glnn.cli.options import parameter_name, print_json
from glnn.cli.screen import Column, Screen, Table, figures, number, size
from glnn.core.plural import count_of
from glnn.core.progress_bar import report_work
from glnn.errors import DeviceError, ModelError
from glnn.generation.architectures import decoder
from glnn.generation.engine import Engine
from glnn.generation.memory import MemoryPlan, RunMemory, plan_memory
from glnn.generation.model_file import ModelFile, open_model
from glnn.generation.speed import DecodingSpeed, measure_decoding
from glnn.profiling.bandwidth import copy_bandwidth

SPARE_TOKENS = 2  # of the context, beside those that are timed


def is_given(name: str) -> bool:
    """Return True where the user gave the parameter called `name` of the current command."""
    return get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def refuse_options(names: Iterable[str], kind: str) -> None:
    """Raise UsageError where the user gave one of these parameters.

    names: of the command function's arguments. kind: the models that they are not for.
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
        config, length = file.config, file.context(context)
        graph = decoder(config, file.weights, length, sequences)
        memory = plan_memory(graph, opened, length, sequences)
    available = opened.perform(opened.available)
    report = {
        "model": Path(model).name,
        "architecture": config.architecture,
        "backend": opened.name,
        "device": _device(opened),
        "context": length,
        "sequences": sequences,
        "weight_bytes": memory.weights,
        "cache_bytes": memory.caches,
        "runs": [_run_report(run) for run in memory.runs],
        "activation_bytes": memory.activations,
        "peak_bytes": memory.peak,
        "available_bytes": available,
        "fits": None if available is None else memory.peak <= available,
    }
    if as_json:
        print_json(report)
    else:
        _show_memory(report, memory, Screen(wide))


def _run_report(run: RunMemory) -> dict[str, Any]:
    follower = None if run.follower is None else run.follower._asdict()
    return {**asdict(run), "follower": follower}


def _device(backend: Backend) -> str:
    device = backend.device
    return device.capabilities.renderer if device else "CPU (NumPy)"


def _show_memory(report: dict[str, Any], memory: MemoryPlan, out: Screen) -> None:
    title = f"{report['model']} on {report['backend']}, {report['device']}: "
    title += count_of(report["sequences"], f"sequence of {count_of(report['context'], 'token')}")
    heads = ("tokens, up to", "next tokens, up to", "activations")
    runs = Table((Column("run", least=None), *map(figures, heads)))
    for run in memory.runs:
        kind = "the same again and again" if run.exact else "of tokens from the host"
        if run.follower is not None:
            drawn = "drawn" if run.follower.sampled else "greedy"
            kind = f"begun ahead, {drawn}, texts up to {run.follower.longest}"
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


def bench_language_model(
    model: str, backends: Sequence[str], required: bool, gpu: str | None, prompt_tokens: int,
    tokens: int, sequences: int, repeat: int, as_json: bool, wide: bool,
) -> None:  # fmt: skip
    """Time a language model on each of `backends`.

    required: True where one that does not open is an error.
    """
    rows: dict[str, dict[str, Any]] = {}
    closed: dict[str, str] = {}
    with open_model(Path(model)) as file:
        context = _context(file, prompt_tokens, tokens)
        for name in backends:
            backend_gpu = None if name == "cpu" and len(backends) > 1 else gpu
            try:
                opened = open_backend(name, gpu=backend_gpu)
            except DeviceError as error:
                if required or gpu is not None:
                    raise
                closed[name] = str(error)
                continue
            bandwidth = copy_bandwidth(opened)
            with report_work(f"timing {name} with", model):
                graph = decoder(file.config, file.weights, context, sequences)
                memory = plan_memory(graph, opened, context, sequences)
                engine = Engine(
                    graph, context, sequences, name, opened.device, None, file.weights.nbytes
                )
                speed = measure_decoding(
                    engine, file.config, memory, prompt_tokens=prompt_tokens, tokens=tokens,
                    sequences=sequences, repeat=repeat,
                )  # fmt: skip
                del engine, graph
            rows[name] = _row(opened, speed, bandwidth)
    about: dict[str, Any] = {"model": Path(model).name, "architecture": file.config.architecture}
    about |= {"prompt_tokens": prompt_tokens, "tokens": tokens, "sequences": sequences}
    about |= {"context": context, "repeat": repeat}
    if as_json:
        print_json({**about, "backends": rows, "closed": closed})
        return
    out = Screen(wide)
    out.say(", ".join(f"{name} {value}" for name, value in about.items()))
    for name, reason in closed.items():
        out.say(f"{name} does not open: {reason}")
    _show_speed(rows, out)


def _context(file: ModelFile, prompt_tokens: int, tokens: int) -> int:
    context = prompt_tokens + tokens + SPARE_TOKENS
    if context > file.config.context:
        raise ModelError(
            f"{file.path}: its context has {file.config.context} tokens, --prompt-tokens and "
            f"--tokens need {context}"
        )
    return context


def _row(backend: Backend, speed: DecodingSpeed, bandwidth: float) -> dict[str, Any]:
    return {
        "device": _device(backend),
        "prompt_tokens_per_s": speed.prompt_tokens_per_s,
        "tokens_per_s": speed.tokens_per_s,
        "bytes_per_token": speed.bytes_per_token,
        "copy_bytes_per_s": bandwidth,
        "bandwidth_share": speed.bytes_per_s / bandwidth,
        "first_s": speed.first_s,
    }


def _show_speed(rows: dict[str, dict[str, Any]], out: Screen) -> None:
    heads = ("prompt tokens/s", "tokens/s", "bytes a token", "copy GB/s", "share of it", "first s")
    table = Table((Column("backend"), Column("device", 4), *map(figures, heads)))
    for name, row in rows.items():
        table.add(
            name,
            row["device"],
            number(row["prompt_tokens_per_s"]),
            number(row["tokens_per_s"]),
            size(round(row["bytes_per_token"])),
            number(row["copy_bytes_per_s"] / 1e9),
            f"{100 * row['bandwidth_share']:.1f}%",
            number(row["first_s"]),
        )
    out.show(table, "tokens a second of all sequences together")
