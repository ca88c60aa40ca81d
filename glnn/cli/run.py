"""`glnn run`: a model on images or arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import rich_click as click

from glnn.cli.annotate import AnnotatedPictures
from glnn.cli.feeds import DTYPES, batch_size, files_of, read_feeds, source_of
from glnn.cli.live import (
    ClassOutput,
    FrameClassifier,
    WatchOptions,
    check_live,
    frames_option,
    live_input,
    watch,
)
from glnn.cli.model_options import load_with, save_trace, trace_option, weights_option
from glnn.cli.options import (
    WritingCommand,
    backend_option,
    device_options,
    fuse_option,
    kernel_option,
    precision_option,
    print_json,
)
from glnn.cli.picture_options import PictureOptions, picture_options
from glnn.cli.results import (
    Classes,
    Detections,
    RunOutputs,
    class_names,
    detector_of,
    explain_undecoded,
)
from glnn.cli.runner import Dump, ModelRunner, dump_options
from glnn.cli.screen import Screen, say
from glnn.cli.sources import Reader, Source
from glnn.errors import ModelError
from glnn.images.camera import Camera
from glnn.images.detection import Detector
from glnn.images.preprocessing_config import stride_of
from glnn.model import Model
from glnn.profiling import Trace
from glnn.progress_bar import report_work
from glnn.runtime.options import PREFERENCES
from glnn.session import InferenceSession

LEFT_OUT, INTERRUPTED = 2, 130
"""The exit status where some pictures could not be read, and after Ctrl-C."""
MOST_SAMPLES, MOST_NUMBERS = 100, 1 << 20
"""Samples a run where nobody says how many: so many, or those of so many numbers."""


@click.command(cls=WritingCommand)
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
    "--batch",
    type=click.IntRange(1),
    help="Samples a run: as many as the model takes, else up to 100, fewer of large ones.",
)
@weights_option
@picture_options
@frames_option
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
    frames: int | None,
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
    pictures: PictureOptions,
) -> int:
    """Run MODEL, a bundled name (lenet), a .json or an .onnx file, on INPUTS: classes or objects.

    An input is an image (PNG, JPEG, WEBP, BMP, GIF, TIFF, PPM), a folder or a quoted pattern of
    them, or a .npy or .npz file of float32 or uint8 samples; an array `label` in an .npz gives the
    right answers. Pictures are resized, cropped and normalised as the model's metadata say, or the
    options; of several, those that cannot be read are left out and named, and the exit status is 2.
    Of detectors that say so in their metadata, as exports of Ultralytics do, objects are listed.
    Ctrl-C shows what was done. Without inputs, lenet takes the bundled digits. What else a model
    gives is summed up, and --dump writes it; one of several inputs takes NAME=FILE for each, or an
    .npz file. A camera (/dev/video0, or 0) or a video gives a line a frame, until Ctrl-C.

    \b
    Examples:
      glnn run lenet
      glnn run vgg16 photo.jpg --top 5 --labels classes.txt --drawn out/
      glnn run net.onnx 'photos/*.jpg' --preprocessing imagenet --json
      glnn run yolo11n.onnx photos/ --drawn out/ --confidence 0.4
      glnn run vgg16 /dev/video0 --frames 100
      glnn run lenet photo.png --trace trace.json     (for ui.perfetto.dev)
      glnn run detector.onnx x.npy --dump result.npz --tensor heat
      glnn run lenet photo.png --dump tensors.npz --tensor c1 --tensor 'sigmoid*'
    """
    loaded = load_with(model, weights)
    options: dict[str, Any] = {"gpu": gpu, "limits": limits, "kernels": kernels, "fused": fused}
    options |= {"precision": precision, "prefer": prefer}
    opened = partial(InferenceSession, loaded, backend, **options)
    into, tracing = (
        partial(Dump.from_options, dump, tensors, loaded),
        None if trace is None else Trace(),
    )
    step = stride_of(loaded.metadata, loaded.output_shapes.values())
    running = ModelRunner(opened, into, tracing, backend == "auto", step)
    if (live := live_input(inputs, frames)) is not None:
        check_live(live, {"batch": batch, "dump": dump, "trace": trace, "show": pictures.show})
        _watch(running, loaded, live, pictures, top, frames, wide, as_json)
        return 0
    done = _run(running, loaded, inputs, model, pictures, batch, top, not as_json)
    more = done.to_json()
    if running.trace is not None and trace is not None:
        more |= save_trace(running.trace, trace)
    if as_json:
        print_json({**_environment(running.session), **more})
    else:
        done.show(Screen(wide), running.session, trace)
    return done.code


@dataclass(frozen=True)
class RunResult:
    """The result of `glnn run`."""

    found: Classes | Detections | RunOutputs
    """The model's outputs."""
    dump: Dump | None
    """The dumped tensors."""
    drawn: AnnotatedPictures | None = None
    """The annotated pictures."""
    source: Source | None = None
    """The source of the samples, where these are files or arrays."""
    whole: bool = True
    """Whether all samples were run, and nobody interrupted it."""

    @property
    def code(self) -> int:
        """The exit status."""
        if not self.whole:
            return INTERRUPTED
        return LEFT_OUT if self.source is not None and self.source.failed else 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain dicts, lists and numbers."""
        said = self.found.to_json()
        if self.source is not None and self.source.reader is not None:
            said |= {**self.source.reader.to_json(), "failed": list(self.source.failed)}
        said |= {} if self.drawn is None else self.drawn.to_json()
        said |= {} if self.whole else {"interrupted": True}
        return said | ({} if self.dump is None else {"dump": self.dump.to_json()})

    def show(self, out: Screen, session: InferenceSession, trace: str | None) -> None:
        """Print what was found, and where."""
        about = _environment(session)
        software = f" (software: {about['software']}, on the CPU)" if about["software"] else ""
        self.found.show(out, f"{about['backend']}: {about['device']}{software}")
        if self.source is not None and self.source.failed:
            count = len(self.source.failed)
            out.say(f"could not be read: {count} picture{'' if count == 1 else 's'}, named above")
        if self.drawn is not None and self.drawn.files:
            folder = Path(self.drawn.files[0]).parent
            out.say(f"drawn: {len(self.drawn.files)} pictures in {folder}")
        if self.dump is not None:
            self.dump.show(out)
        if session.choice is not None:
            out.say(f"auto takes {session.choice}")
        if trace is not None:
            out.say(f"traced to {trace}, which ui.perfetto.dev shows")
        if not self.whole:
            total = None if self.source is None else self.source.total
            say(f"interrupted: these are the results of what was done of {total}")


def _environment(session: InferenceSession) -> dict[str, Any]:
    """Describe the model, backend and device.

    choice: the choice of `auto`; None where there was no choice.
    """
    device, choice = session.backend.device, session.choice
    return {
        "model": session.model.name,
        "backend": session.backend.name,
        "device": device.capabilities.renderer if device else "CPU (NumPy)",
        "software": device.capabilities.software if device else None,
        "choice": choice.to_json() if choice else None,
    }


def _run(
    running: ModelRunner,
    loaded: Model,
    inputs: tuple[str, ...],
    model: str,
    pictures: PictureOptions,
    batch: int | None,
    top: int,
    shown: bool,
) -> RunResult:
    """Run the model on the inputs of the command line."""
    detector, output = detector_of(loaded, pictures), _classifier(loaded)
    if detector is None and output is None and (pictures.labels is not None or pictures.keeps):
        raise ModelError(f"--labels, --drawn and --show are for classes: {model} gives none")
    if detector is None and output is None and (not inputs or not _takes_samples(loaded)):
        _check_options(pictures, None)
        feeds = read_feeds(loaded, inputs, model, batch, {}, most=MOST_SAMPLES, random=False)
        running.begin(1)
        with report_work("running", loaded.name):
            results = running.run(feeds.arrays)
        return RunResult(RunOutputs.from_results(results, explain_undecoded(loaded)), running.dump)
    paths = files_of(loaded, inputs).get(loaded.inputs[0].name, ())
    source = source_of(loaded, paths, model, pictures.fields, pictures.instead, pictures.keeps)
    _check_options(pictures, source)
    if detector is None and output is None:
        given = source.whole(batch_size(loaded, batch, MOST_SAMPLES))
        count = batch_size(loaded, batch, len(given.x))
        running.begin(1)
        x = {loaded.inputs[0].name: np.resize(given.x, (count, *given.x.shape[1:]))}
        said = [
            *explain_undecoded(loaded),
            *source.notes,
            *given.notes,
            *_count_notes(len(given.x), count, source),
        ]
        with report_work("running", loaded.name):
            results = running.run(x)
        return RunResult(RunOutputs.from_results(results, said), running.dump, None, source)
    count = batch_size(loaded, batch, _samples_a_run(loaded, source))
    found: Classes | Detections
    if detector is not None:
        found = Detections(detector, loaded.inputs[0], notes=list(source.notes))
    else:
        assert output is not None
        labels, notes = class_names(
            pictures.labels, loaded.metadata, loaded.tensors[output].shape[1]
        )
        found = Classes(output, top, labels, notes=[*notes, *source.notes])
    drawn = AnnotatedPictures.from_options(pictures, source)
    running.begin(-(-(source.total or 0) // count))
    whole = running.run_all(source, count, found, drawn, shown)
    return RunResult(found, running.dump, drawn, source, whole)


def _samples_a_run(model: Model, source: Source) -> int:
    """Return the samples of a run where --batch is not given, fewer of large ones."""
    numbers = prod(n for n in model.inputs[0].shape[1:] if isinstance(n, int))
    chosen = None if source.reader is None else source.reader.chosen
    size = None if chosen is None else chosen.how.crop or chosen.how.resize
    if size is not None and any(isinstance(n, str) for n in model.inputs[0].shape[1:]):
        numbers *= prod(size) if isinstance(size, tuple) else size * size
    return max(1, min(MOST_SAMPLES, MOST_NUMBERS // max(1, numbers)))


def _count_notes(read: int, count: int, source: Source) -> list[str]:
    """Return a note where one run takes another number of samples than there are."""
    there = read if source.total is None else source.total - len(source.failed)
    if there > count:
        return [f"one run takes {count} samples: the first of {there}, the others are left out"]
    return [f"one run takes {count} samples: the {there} are repeated"] if there < count else []


def _watch(
    running: ModelRunner,
    loaded: Model,
    name: str,
    pictures: PictureOptions,
    top: int,
    frames: int | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Run the model on the frames of a camera or a video."""
    detector, output = detector_of(loaded, pictures), _classifier(loaded)
    reads: Detector | ClassOutput
    notes: list[str] = []
    if detector is not None:
        reads = detector
    elif output is not None:
        labels, notes = class_names(
            pictures.labels, loaded.metadata, loaded.tensors[output].shape[1]
        )
        reads = ClassOutput(output, labels, top)
    else:
        gives = f"expected a model that gives classes or objects, {loaded.name} gives none"
        raise ModelError(f"{name}: {gives}")
    reader = Reader.for_model(loaded, pictures.fields, pictures.instead)
    with Camera(name) as camera:
        running.begin(1)
        watching = FrameClassifier(running, reader, reads)
        said = {**reader.to_json(), "notes": [*notes, *reader.notes]}
        how = WatchOptions(frames, pictures.drawn, wide, as_json)
        watch(camera, watching, lambda: {**_environment(running.session), **said}, how)


def _takes_samples(model: Model) -> bool:
    """Return True where the model has one input, and files can hold samples of it."""
    return len(model.inputs) == 1 and model.inputs[0].dtype in DTYPES


def _classifier(model: Model) -> str | None:
    """Return the first output that is (n, classes) for samples that files can hold; None without
    any.
    """
    if not _takes_samples(model):
        return None
    return next((name for name in model.outputs if len(model.tensors[name].shape) == 2), None)


def _check_options(pictures: PictureOptions, source: Source | None) -> None:
    """Raise ModelError where an option for pictures is given without pictures."""
    if pictures.option is not None and (source is None or source.reader is None):
        raise ModelError(f"{pictures.option} is for pictures: there are none among the inputs")
