"""`glnn bench`: every layer's time on several backends."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click
from numpy.typing import NDArray

from glnn.backends import NAMES
from glnn.cli.bench_suite import bench_suite
from glnn.cli.feeds import advise_shapes, read_feeds
from glnn.cli.language_models import bench_language_model, is_given, refuse_options
from glnn.cli.model_options import ModelName, note_random_weights, save_trace, trace_option
from glnn.cli.options import (
    FileName,
    OutputFile,
    WritingCommand,
    backends_option,
    device_options,
    fuse_option,
    kernel_option,
    precision_option,
    print_json,
    refuse_nan,
    shape_option,
)
from glnn.cli.screen import Column, Screen, Table, figures, number, progress, size
from glnn.core.plural import count_of
from glnn.core.types import MOST, Array, Shape
from glnn.errors import DeviceError, GlnnError, ModelError, UnsupportedOpError
from glnn.generation.language_model import MOST_SEQUENCES
from glnn.generation.model_file import is_language_model
from glnn.kernels import kernels_for
from glnn.kernels.selector import names_of
from glnn.model import Model, load
from glnn.profiling import Profile, StepTime, Trace, profile
from glnn.profiling.onnxruntime_peer import PEER, OnnxRuntime, PeerTime, import_peer
from glnn.profiling.profile import begin_peak
from glnn.session import InferenceSession
from glnn.suite.measure import MINUTES, MOST_MINUTES

MOST_TRACED = 3  # runs of each backend
TEXTS = 3  # texts of a language model that are timed by default
OF_NETWORKS = (
    *("inputs", "batch", "shapes", "kernels", "fused", "precision", "trace", "peers", "limits"),
)
"""Parameters that do nothing for a language model."""
NOT_OF_SUITE = (
    *("model", *OF_NETWORKS, "backends", "repeat", "prompt_tokens", "tokens", "sequences"),
)
"""Parameters that do nothing for the suite."""


@click.command(cls=WritingCommand)
@click.argument("model", type=ModelName(".gguf"), required=False)
@click.argument("inputs", nargs=-1, type=FileName())
@backends_option(NAMES, "Backends to time; all that open, if not given.")
@click.option(
    "--batch", type=click.IntRange(1, MOST), help="Samples a run: 1, or as many as the model takes."
)
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Runs to take medians of.",
)
@shape_option
@kernel_option
@fuse_option
@precision_option
@trace_option
@click.option(
    "--peers",
    is_flag=True,
    help="Of an .onnx file: time it in ONNX Runtime on the CPU, too, and compare the results.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1, MOST),
    default=512,
    show_default=True,
    help="Of a language model: tokens of a prompt.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1, MOST),
    default=64,
    show_default=True,
    help="Of a language model: tokens that are added to it.",
)
@click.option(
    "--sequences",
    type=click.IntRange(1, MOST_SEQUENCES),
    default=1,
    show_default=True,
    help="Of a language model: texts that are continued together.",
)
@click.option(
    "--suite",
    is_flag=True,
    help="Measure this device by the same networks as others: no MODEL, ten minutes.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True, max=MOST_MINUTES),
    callback=refuse_nan,
    default=MINUTES,
    show_default=True,
    help="With --suite: after so many nothing more is begun.",
)
@click.option(
    "--report",
    metavar="FILE",
    type=OutputFile(),
    help="With --suite: write what was measured to this file, for docs/boards.md.",
)
@device_options
def bench(
    model: str | None,
    inputs: tuple[str, ...],
    backends: tuple[str, ...] | None,
    batch: int | None,
    repeat: int,
    shapes: dict[str, Shape],
    kernels: dict[str, str],
    fused: bool,
    precision: str,
    trace: str | None,
    peers: bool,
    prompt_tokens: int,
    tokens: int,
    sequences: int,
    suite: bool,
    minutes: float,
    report: str | None,
    gpu: str | None,
    limits: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Time MODEL layer by layer: kernel and wall time apart, transfers included in the total.

    Times are medians in milliseconds. CPU time is what a whole run takes of the processors in all
    threads of this process, RSS its resident memory; a software renderer's are among both. Kernel
    times are the GPU's own, shown only where its timer agrees with the clock on the wall. Kernels
    forced by --kernel apply to the backends that have them. INPUTS are files of samples, --batch
    says how many of them; of several inputs NAME=FILE for each, or an .npz file. Inputs without a
    file are given numbers at random, ids within their table; but lenet takes the bundled digits.

    NumPy is not the fastest that a CPU can do: --peers times an .onnx file in ONNX Runtime, too,
    where its package is installed, on the same inputs, and says how far each backend's results are
    from its: the largest |glnn - ONNX Runtime| / |ONNX Runtime| of an output.

    Of a language model, a GGUF file or a folder of Hugging Face, the tokens a second of prompts and
    behind them are timed, and the bytes that a token reads are held against a copy's.

    --suite needs no MODEL: it times LeNet, five networks and a language model of seeded weights on
    each backend, and in ONNX Runtime where that and onnx are installed; it measures products,
    launches and transfers, and has the doctor look at each kernel in one form. The --report has no
    names of users and hosts, and no paths: docs/boards.md is made of such files.

    \b
    Examples:
      glnn bench lenet --batch 100
      glnn bench lenet --backend compute,cpu --repeat 50 --json
      glnn bench lenet --backend compute --kernel matmul=gemm_blocked
      glnn bench lenet --batch 100 --no-fuse
      glnn bench net.onnx --shape x=1,3,64,96
      glnn bench bert.onnx --batch 8 --shape sequence=128
      glnn bench net.onnx --batch 8 --peers
      glnn bench bert.onnx input_ids=ids.npy attention_mask=mask.npy
      glnn bench lenet --batch 100 --trace trace.json     (for ui.perfetto.dev)
      glnn bench model.gguf --prompt-tokens 128 --tokens 32 --sequences 8
      glnn bench --suite --report board.json
    """
    if suite:
        refuse_options(NOT_OF_SUITE, "--suite")
        bench_suite(gpu, report, minutes, as_json, wide)
        return
    refuse_options(("minutes", "report"), "a MODEL")
    if model is None:
        raise click.UsageError("Missing argument 'MODEL', or --suite.")
    names = backends or NAMES
    if is_language_model(model):
        refuse_options(OF_NETWORKS, "language models")
        bench_language_model(
            model, names, backends is not None, gpu, prompt_tokens, tokens, sequences,
            repeat if is_given("repeat") else TEXTS, as_json, wide,
        )  # fmt: skip
        return
    refuse_options(("prompt_tokens", "tokens", "sequences"), "networks")
    if peers:
        _check_peers(model)
    loaded = load(model)
    if not as_json:
        note_random_weights(loaded, model)
    feeds = read_feeds(loaded, inputs, model, batch, shapes)
    count = next(iter(feeds.shapes[loaded.inputs[0].name]), 1)
    options: dict[str, Any] = {"limits": limits, "precision": precision, "fused": fused}
    required = backends is not None
    sessions, closed = _sessions(loaded, names, kernels, gpu, options, required)
    machine = _machine(sessions)
    recorded = None if trace is None else Trace()
    results: dict[str, dict[str, Array]] | None = {} if peers else None
    with advise_shapes(loaded, inputs, shapes):
        profiles = profile_sessions(sessions, feeds.arrays, repeat, recorded, not as_json, results)
    peer = None
    if results is not None:
        try:
            peer = OnnxRuntime(Path(model)).measure(feeds.arrays, repeat, results)
        except ModelError as error:
            closed[PEER] = str(error)
    saved = save_trace(recorded, trace) if recorded is not None and trace is not None else {}
    about = {"model": loaded.name, "batch": count, "repeat": repeat, "precision": precision}
    about |= {"fused": fused, **machine}
    if as_json:
        shown = {name: p.to_json() for name, p in profiles.items()}
        result = {"inputs": feeds.to_json(), "backends": shown, "closed": closed}
        if peers:
            result["peers"] = {PEER: peer.to_json()} if peer else {}
        random = {"random_weights": loaded.has_random_weights}
        print_json({**about, **random, **result, **saved})
        return
    out = Screen(wide)
    out.say(", ".join(f"{k} {v}" for k, v in about.items() if v is not None))
    if feeds.random:
        out.say(f"inputs: {feeds}")
    for name, reason in closed.items():
        out.say(f"{name} does not open: {reason}")
    _show(out, loaded.name, profiles, peer)
    if trace is not None:
        out.say(f"traced to {trace}, which ui.perfetto.dev shows")


def profile_sessions(
    sessions: dict[str, InferenceSession],
    feeds: Mapping[str, NDArray[Any]],
    repeat: int,
    trace: Trace | None,
    shown: bool,
    results: dict[str, dict[str, Array]] | None = None,
) -> dict[str, Profile]:
    """Measure each backend's plan, and record a few runs of each in `trace`.

    results: where given, gets the outputs of each backend. Each session is removed from `sessions`
    and freed, so that its memory is not counted with the next one's.
    """
    profiles: dict[str, Profile] = {}
    shapes = {name: array.shape for name, array in feeds.items()}
    with progress(shown) as bar:
        for name in tuple(sessions):
            begin_peak()
            plan = sessions.pop(name).plan(shapes, feeds=feeds)
            task = bar.add_task(f"timing {name}", total=2 + len(plan.steps))
            profiles[name] = profile(plan, feeds, repeat, partial(bar.advance, task))
            if trace is not None:
                runs = range(min(repeat, MOST_TRACED))
                for _ in bar.track(runs, description=f"tracing {name}"):
                    trace.run(plan, feeds)
            if results is not None:
                results[name] = plan.run(feeds)
            del plan
    return profiles


def _check_peers(model: str) -> None:
    """Raise GlnnError where ONNX Runtime is missing, ModelError where it cannot read `model`."""
    if Path(model).suffix != ".onnx":
        raise ModelError(f"--peers: expected an .onnx file for ONNX Runtime to read, got {model}")
    try:
        import_peer()
    except GlnnError as error:
        raise GlnnError(f"--peers: {error}") from None


def _sessions(
    model: Model,
    names: Sequence[str],
    kernels: dict[str, str],
    gpu: str | None,
    options: Mapping[str, Any],
    required: bool,
) -> tuple[dict[str, InferenceSession], dict[str, str]]:
    """Open a session on each backend, and return them with the reasons why others do not open.

    required: whether a backend that does not open is a DeviceError, as --backend names it.
    """
    forced = _forced_kernels(kernels, names)
    sessions: dict[str, InferenceSession] = {}
    closed: dict[str, str] = {}
    for name in names:
        backend_gpu = _gpu(gpu, name, names)
        try:
            sessions[name] = InferenceSession(
                model, name, kernels=forced[name], gpu=backend_gpu, **options
            )
        except DeviceError as error:
            if required or gpu is not None:
                raise
            closed[name] = str(error)
    return sessions, closed


def _show(out: Screen, model: str, profiles: dict[str, Profile], peer: PeerTime | None) -> None:
    for name, result in profiles.items():
        title = f"{model} on {name}"
        if result.timer is not None and name != "cpu":
            title += f" (no kernel times: {result.timer})"
        out.show(_layers(result, profiles.get("cpu")), title)
    title = "whole runs, transfers included; upload, steps and download are timed in other runs, "
    title += "each waited for, so that they add up to more"
    title += "; speed-up over cpu" if "cpu" in profiles else ""
    out.show(_totals(profiles, peer), title)
    if peer is not None:
        differences = ", ".join(f"{error:.1e} on {name}" for name, error in peer.difference.items())
        out.say(
            f"{PEER} {peer.version}, {peer.provider}, {count_of(peer.threads, 'thread')}: "
            f"differs by {differences}"
        )
    for name, result in profiles.items():
        if result.layers_ms > result.total_ms:
            out.say(
                f"{name}: the layers' wall times add up to {number(result.layers_ms)} ms, a whole "
                f"run takes {number(result.total_ms)}: each layer is timed by itself and waited for"
            )


def _gpu(gpu: str | None, backend: str, backends: Sequence[str]) -> str | None:
    """Return the GPU for `backend`: None for `cpu` where other backends are timed, too."""
    return None if backend == "cpu" and len(backends) > 1 else gpu


def _forced_kernels(kernels: dict[str, str], backends: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the forced kernels of each backend.

    Raises UnsupportedOpError where no backend has one.
    """
    forced = {name: _kernels_of(kernels, name) for name in backends}
    if unknown := set(kernels.items()) - {k for f in forced.values() for k in f.items()}:
        op, kernel = sorted(unknown)[0]
        raise UnsupportedOpError(f"--kernel: {', '.join(backends)} have no kernel {op}={kernel}")
    return forced


def _kernels_of(kernels: dict[str, str], backend: str) -> dict[str, str]:
    """Return the forced kernels, by op, that `backend` has."""
    return {
        op: choice
        for op, choice in kernels.items()
        if {*names_of(choice)} <= {kernel.name for kernel in kernels_for(op, backend)}
    }


def _machine(sessions: dict[str, InferenceSession]) -> dict[str, str | None]:
    """Describe the machine and the device. software: the renderer on the CPU, None for a GPU."""
    devices = [s.backend.device for s in sessions.values() if s.backend.device is not None]
    offers = devices[0].capabilities if devices else None
    return {
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "device": offers.renderer if offers else "CPU (NumPy)",
        "software": offers.software if offers else None,
        "version": offers.version_text if offers else f"NumPy {np.__version__}",
    }


def _layers(result: Profile, cpu: Profile | None) -> Table:
    """Make the table of layers. One of several steps has a row of their sum, and one for each."""
    on_cpu: dict[str, float] = {}
    for step in cpu.layers if cpu else ():
        on_cpu[step.layer] = on_cpu.get(step.layer, 0) + step.wall_ms
    ranks = {"GFLOP": 7, "kernel ms": 0, "wall ms": 0, "overhead ms": 5, "GFLOP/s": 3}
    ranks |= {"CPU ms": 2, "speed-up": 1}
    numbers = (figures(head, rank) for head, rank in ranks.items())
    rows = Table((Column("layer"), Column("op", 6), Column("kernel", 4), *numbers))
    for layer, group in groupby(result.layers, key=lambda step: step.layer):
        steps = list(group)
        cpu_ms = on_cpu.get(layer)
        if len(steps) == 1:
            rows.add(layer, steps[0].op, steps[0].kernel, *_numbers(steps, cpu_ms))
            continue
        kernels = " + ".join(dict.fromkeys(step.via for step in steps if step.via))
        rows.add(layer, f"{len(steps)} steps", kernels, *_numbers(steps, cpu_ms))
        for step in steps:
            label = f"  {step.name.removeprefix(f'{layer}: ')}"
            rows.add(label, step.op, step.kernel, *_numbers([step], None))
    return rows


def _numbers(steps: Sequence[StepTime], cpu_ms: float | None) -> list[str]:
    """Return the figures of a row: the totals of `steps`, beside the CPU's time."""
    gflop, wall_ms = sum(s.gflop for s in steps), sum(s.wall_ms for s in steps)
    kernel_times = [s.kernel_ms for s in steps if s.kernel_ms is not None]
    kernel_ms = sum(kernel_times) if len(kernel_times) == len(steps) else None
    spent = wall_ms if kernel_ms is None else kernel_ms
    return [
        number(gflop),
        number(kernel_ms),
        number(wall_ms),
        number(None if kernel_ms is None else wall_ms - kernel_ms),
        number(gflop / spent * 1e3 if spent else None),
        number(cpu_ms),
        number(cpu_ms / wall_ms if cpu_ms else None),
    ]


def _totals(profiles: dict[str, Profile], peer: PeerTime | None) -> Table:
    cpu = profiles.get("cpu")
    ranks = {"total ms": 0, "upload ms": 4, "steps ms": 3, "download ms": 5, "kernels ms": 2}
    ranks |= {"speed-up": 1, "CPU time ms": 2, "RSS": 3, "peak RSS": 4, "GPU memory": 4}
    numbers = (figures(head, rank) for head, rank in ranks.items())
    rows = Table((Column("backend"), *numbers))
    for name, p in profiles.items():
        rows.add(
            name,
            number(p.total_ms),
            number(p.upload_ms),
            number(p.perform_ms),
            number(p.download_ms),
            number(p.kernel_ms),
            number(cpu.total_ms / p.total_ms if cpu else None),
            number(p.cpu_ms),
            *(size(nbytes) for nbytes in (p.rss_bytes, p.peak_rss_bytes, p.gpu_bytes)),
        )
    if peer is not None:
        speedup = number(cpu.total_ms / peer.total_ms if cpu else None)
        rows.add(PEER, number(peer.total_ms), *4 * "-", speedup, number(peer.cpu_ms), *3 * "-")
    return rows
