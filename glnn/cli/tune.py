"""`glnn tune`: find and keep the fastest kernels of this device."""

from __future__ import annotations

import re
from dataclasses import asdict

import rich_click as click

from glnn.backends import open_backend
from glnn.backends.gl import GlBackend
from glnn.backends.opening import GL
from glnn.cli.feeds import input_shapes
from glnn.cli.model_options import ModelName
from glnn.cli.options import (
    BACKEND,
    device_options,
    precision_option,
    print_json,
    shape_option,
)
from glnn.cli.screen import Column, Screen, Table, figures, number, progress, say
from glnn.core.types import MOST, DType, Shape, TensorType
from glnn.errors import DeviceError, GlnnError
from glnn.graph.operators import Matmul
from glnn.kernels import kernels_for
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.tuned import Tuned, TunedChoice, problem_class
from glnn.model import load
from glnn.session import InferenceSession
from glnn.tuning import Tuning, far_slower, parameters
from glnn.tuning import tune as search

NO_CACHE = "GLNN_CACHE is empty, so nothing"
SIZES = (
    *(f"{n}x{n}x{n}" for n in (64, 128, 256, 512, 1024, 2048, 4096)),
    *(f"1x{n}x{n}" for n in (256, 1024, 4096)),
    *(f"128x{n}x{n}" for n in (256, 1024, 4096)),
)


@click.command()
@click.argument("model", required=False, type=ModelName())
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="MxNxK",
    help="Matrix products to tune: x of M by K, weights of N by K; may be repeated.",
)
@click.option(
    "--batch", type=click.IntRange(1, MOST), help="Samples a run of MODEL, 1 unless given."
)
@click.option(
    "--exhaustive", is_flag=True, help="Try all combinations of parameters; implies --fresh."
)
@click.option("--fresh", is_flag=True, help="Tune anew what was tuned before.")
@click.option("--show", is_flag=True, help="Only show what was found before.")
@click.option("--forget", is_flag=True, help="Drop what was found before, and nothing else.")
@click.option(
    *BACKEND,
    "backend_name",
    type=click.Choice(list(GL)),
    default="compute",
    show_default=True,
    help="Whose kernels are tuned.",
)
@shape_option
@precision_option
@device_options
def tune(
    model: str | None,
    sizes: tuple[str, ...],
    batch: int | None,
    exhaustive: bool,
    fresh: bool,
    show: bool,
    forget: bool,
    backend_name: str,
    shapes: dict[str, Shape],
    precision: str,
    gpu: str | None,
    limits: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Find the fastest kernels of this device, and keep them for every later run.

    Tunes the steps of MODEL, or matrix products of the sizes given, or of many sizes where neither
    is given. Each size stands for those near it. A candidate whose result is wrong is not ranked.
    What is found is kept at once: after an interruption the same command goes on.

    A size has some fifty candidates, and each takes tenths of a second or a few runs, whichever is
    longer: 512x512x512 takes 12 seconds on llvmpipe with two cores, sizes whose runs take seconds
    many minutes. --exhaustive tries hundreds of candidates.

    \b
    Examples:
      glnn tune
      glnn tune lenet --batch 100
      glnn tune --size 1024x1024x1024 --size 1x4096x25088 --exhaustive
      glnn tune lenet --backend feedback
      glnn tune --show --json
    """
    _check_options(model, sizes, batch, show, forget)
    backend = open_backend(backend_name, gpu=gpu, limits=limits)
    assert isinstance(backend, GlBackend)
    tuned = backend.tuned
    if forget:
        _forget(tuned)
    elif not show:
        _check_folder(tuned)
        problems = (
            _model_problems(model, batch, shapes, backend, precision)
            if model
            else _matmul_problems(sizes or SIZES, DType(precision))
        )
        _tune(backend, problems, exhaustive, fresh or exhaustive, shown=not as_json)
    if as_json:
        choices = {key: asdict(choice) for key, choice in tuned.choices.items()}
        file = tuned.path and str(tuned.path)
        print_json({"device": tuned.device, "file": file, "choices": choices})
    else:
        _print(tuned, Screen(wide))


def _check_options(
    model: str | None, sizes: tuple[str, ...], batch: int | None, show: bool, forget: bool
) -> None:
    """Raise GlnnError for options that do not go together."""
    if model is not None and sizes:
        raise GlnnError(f"--size: expected either MODEL or sizes, got {model} and {sizes[0]}")
    if model is None and batch is not None:
        raise GlnnError(f"--batch: expected a MODEL to run {batch} samples of, got none")
    if show and forget:
        raise GlnnError("--forget: expected it without --show, got both")


def _print(tuned: Tuned, out: Screen) -> None:
    """Print the tuned kernels as a table."""
    out.say(f"{tuned.device}\n{tuned.path or f'{NO_CACHE} is kept'}")
    texts = (Column("problems like", least=24), Column("kernel"), Column("parameters", 3))
    listed = Table((*texts, figures("ms"), figures("default ms", 2), figures("gain", 1)))
    for key, choice in sorted(tuned.choices.items()):
        listed.add(key, choice.kernel, " ".join(parameters(choice.parameters)), *_times(choice))
    out.show(listed)


def _times(choice: TunedChoice) -> tuple[str, str, str]:
    ms = number(1e3 * choice.seconds)
    if choice.default_seconds is None:
        return ms, "-", "-"
    gain = choice.default_seconds / choice.seconds
    return ms, number(1e3 * choice.default_seconds), f"{number(gain)}x"


def _check_folder(tuned: Tuned) -> None:
    """Raise GlnnError before the search if its results cannot be saved."""
    if tuned.path is None:
        raise GlnnError(f"{NO_CACHE} can be kept")
    try:
        tuned.probe()
    except OSError as error:
        raise GlnnError(
            f"what is found cannot be kept in {tuned.path.parent}: {error.strerror}; "
            "GLNN_CACHE names another folder"
        ) from None


def _forget(tuned: Tuned) -> None:
    try:
        tuned.forget()
    except OSError as error:
        raise GlnnError(f"--forget: {tuned.path} cannot be removed: {error.strerror}") from None


def _matmul_problems(sizes: tuple[str, ...], stored: DType) -> list[OpSpec]:
    """Return matrix products of these sizes, one of each class.

    Small ones come first, as their results shorten the search for larger ones.
    """
    problems: dict[str, OpSpec] = {}
    texts: dict[str, str] = {}
    for text in sizes:
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", text)
        if not match or max(map(int, match.groups())) > MOST:
            raise GlnnError(f"--size: expected three numbers as in 100x64x256, got {text!r}")
        m, n, k = map(int, match.groups())
        types = {"x": TensorType((m, k)), "weight": TensorType((n, k), stored)}
        spec = OpSpec.create(Matmul(), types, {})
        key = problem_class(spec)
        if key in problems:
            say(f"--size: {text} is tuned as {texts[key]}, being near it")
            continue
        problems[key], texts[key] = spec, text
    return sorted(problems.values(), key=lambda spec: spec.op.flops(spec.shapes))


def _model_problems(
    name: str, batch: int | None, requested: dict[str, Shape], backend: GlBackend, precision: str
) -> list[OpSpec]:
    """Return the specs that a plan of the model chooses kernels for, one of each class."""
    model = load(name)
    session = InferenceSession(model, backend.name, device=backend.device, precision=precision)
    shapes = input_shapes(model, name, batch, requested)
    problems: dict[str, OpSpec] = {}
    for _, outline in session.plan(shapes).outline.walk():
        for spec in outline.schedule.specs:
            problems.setdefault(problem_class(spec), spec)
    return list(problems.values())


def _tune(
    backend: GlBackend, problems: list[OpSpec], exhaustive: bool, fresh: bool, shown: bool
) -> None:
    failures: list[str] = []
    done: list[Tuning] = []
    with progress(shown) as bar:
        task = bar.add_task("tuning", total=len(problems))
        for spec in problems:
            key = problem_class(spec)
            kernels = kernels_for(spec.op.name, backend.name)
            known = backend.tuned.kernel(kernels, spec)

            def advance(candidate: str, key: str = key) -> None:
                bar.update(task, description=f"{key}: {candidate}"[:100])

            if known is None or fresh:
                try:
                    result = search(
                        backend,
                        spec,
                        exhaustive=exhaustive,
                        skip=far_slower(spec, done),
                        advance=advance,
                    )
                    done.append(result)
                    backend.tuned.keep(backend.name, spec, result.best)
                except DeviceError:
                    raise
                except GlnnError as error:
                    failures.append(f"{key}: {error}")
            bar.advance(task)
    for failure in failures:
        say(f"not tuned: {failure}")
    if failures and len(failures) == len(problems):
        raise GlnnError("nothing could be tuned")
