"""`glnn run`: a model on images or arrays, or on each frame of a camera or a video."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import rich_click as click
from rich.cells import cell_len, set_cell_size

from glnn.cli.feeds import batch_size, match_files, open_samples, read_feeds
from glnn.cli.model_options import (
    ModelName,
    PictureOptions,
    load_with,
    note_random_weights,
    picture_options,
    save_trace,
    trace_option,
    weights_option,
)
from glnn.cli.options import (
    INTERRUPTED,
    FileName,
    WritingCommand,
    backend_option,
    check_absent,
    device_options,
    fuse_option,
    kernel_option,
    precision_option,
    print_json,
)
from glnn.cli.results import (
    Classes,
    Detections,
    RankedClass,
    RunOutputs,
    best_classes,
    class_names,
    classes_of,
    classifier_output,
    describe_outputs,
    explain_undecoded,
    frame_size,
    make_detector,
    refuse_class_option,
    select_scores,
    takes_samples,
)
from glnn.cli.runner import (
    AnnotatedPictures,
    Dump,
    ModelRunner,
    dump_options,
    parse_folder,
    repeat_to,
)
from glnn.cli.screen import Screen, say
from glnn.cli.sources import SampleReader, SampleStream
from glnn.core.plural import count_of
from glnn.core.progress_bar import report_work
from glnn.errors import ModelError, printable
from glnn.images.camera import Camera, Frame, is_camera, is_video
from glnn.images.detection import DetectedObject, Detector
from glnn.images.drawing import draw_labels, draw_objects
from glnn.images.files import write_picture
from glnn.images.labels import Labels
from glnn.images.preprocessing_config import stride_of
from glnn.model import Model
from glnn.profiling import Trace
from glnn.runtime.options import PREFERENCES
from glnn.session import InferenceSession

RATE_FRAMES = 30  # the latest frames, over which the rate is averaged
CLEAR_LINE = "\r\x1b[K"
"""The escape sequence by which a terminal overwrites the line."""

frames_option = click.option(
    "--frames",
    type=click.IntRange(1),
    help="End after so many frames of a camera or a video, which else goes on until Ctrl-C or its "
    "end.",
)


def live_input(inputs: Sequence[str], frames: int | None = None) -> str | None:
    """Return the camera or video that is the only one of INPUTS; None where there is none.

    Raises ModelError where there are others beside it, and for --frames where there is none.
    """
    live = [one for one in inputs if is_camera(one) or is_video(one)]
    if live and len(inputs) > 1:
        raise ModelError(f"{live[0]}: expected a camera or a video alone, got {len(inputs)} INPUTS")
    if not live and frames is not None:
        raise ModelError("--frames is for a camera or a video: there is none among the inputs")
    return live[0] if live else None


def check_live(name: str, options: Mapping[str, object]) -> None:
    """Raise ModelError where one of `options` was given, by its name: they are for samples."""
    for option, is_set in options.items():
        if is_set:
            raise ModelError(f"--{option} is for files of samples: {name} gives a frame a run")


class FrameContent(Protocol):
    """The classes of a frame, or the objects in it."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain dicts, lists and numbers."""

    def draw(self, frame: Frame) -> Frame:
        """Draw it on a copy of the frame."""


@dataclass(frozen=True)
class FrameClasses:
    """The best classes of a frame, the best first."""

    best: Sequence[RankedClass]

    def to_json(self) -> dict[str, Any]:
        return {"top": [one.to_json() for one in self.best]}

    def draw(self, frame: Frame) -> Frame:
        return draw_labels(frame, [(one.name, one.probability) for one in self.best])

    def __str__(self) -> str:
        return ", ".join(f"{one.name} {one.probability:.1%}" for one in self.best)


@dataclass(frozen=True)
class FrameObjects:
    """The objects in a frame, the best first."""

    objects: Sequence[DetectedObject]

    def to_json(self) -> dict[str, Any]:
        return {"objects": [one.to_json() for one in self.objects]}

    def draw(self, frame: Frame) -> Frame:
        return draw_objects(frame, self.objects)

    def __str__(self) -> str:
        return ", ".join(f"{one.label} {one.score:.1%}" for one in self.objects) or "nothing"


@dataclass(frozen=True)
class FrameResult:
    """A frame with what the model recognised in it."""

    number: int
    """The frame's number, from 0."""
    seconds: float
    """Seconds since the first frame."""
    rate: float | None
    """Frames a second, over the latest ones; None for the first frame."""
    content: FrameContent
    """The classes or objects."""
    frame: Frame
    """The frame itself."""

    def to_json(self) -> dict[str, Any]:
        """Return number, time, rate and content as plain dicts, lists and numbers."""
        about = {"frame": self.number, "seconds": self.seconds, "frames_per_second": self.rate}
        return {**about, **self.content.to_json()}

    def __str__(self) -> str:
        """Describe the frame in one line, the best class or object first."""
        rate = "" if self.rate is None else f" ({self.rate:.1f} a second)"
        return f"frame {self.number}{rate}: {self.content}"


@dataclass(frozen=True)
class ClassOutput:
    """The output of a model that gives (1, classes)."""

    output: str
    labels: Labels | None = None
    """The classes' names."""
    top: int = 1
    """The number of classes to report."""


@dataclass(frozen=True)
class FrameClassifier:
    """Runs a model on one frame at a time, and decodes its outputs."""

    runner: ModelRunner
    """The runner of the model, whose session is open."""
    reader: SampleReader
    """Converts frames to samples."""
    decoder: Detector | ClassOutput
    """Decodes the model's outputs."""

    def classify(self, frame: Frame) -> FrameContent:
        """Classify one frame, or detect its objects. Raises what the session's runs raise."""
        info = self.reader.info
        x = self.reader.sample(frame)
        results = self.runner.run({info.name: repeat_to(x, info.shape[0])})
        if isinstance(self.decoder, Detector):
            size = frame.shape[0], frame.shape[1]
            return FrameObjects(self.decoder.detect(results, frame_size(x, info), [size])[0])
        scores = select_scores(results, self.decoder.output, 1)
        return FrameClasses(best_classes(scores, self.decoder.top, self.decoder.labels)[0])

    def results(self, camera: Camera, frames: int | None) -> Iterator[FrameResult]:
        """Yield each frame, at most `frames` of them, with its classes or objects."""
        times: deque[float] = deque(maxlen=RATE_FRAMES + 1)
        started = 0.0
        for number, frame in enumerate(islice(camera, frames)):
            content = self.classify(frame)
            now = perf_counter()
            started = started or now
            times.append(now)
            rate = (len(times) - 1) / (now - times[0]) if number else None
            yield FrameResult(number, now - started, rate, content, frame)


class FrameReporter(Protocol):
    """Protocol of objects that print the result of each frame."""

    def report(self, result: FrameResult) -> None:
        """Print the result of one frame."""

    def end(self) -> None:
        """End the report after the last frame, also after an error."""


class JsonLines:
    """Prints a line of JSON for each frame."""

    def report(self, result: FrameResult) -> None:
        print_json(result.to_json(), indent=None)

    def end(self) -> None:
        pass


@dataclass
class StatusLine:
    """Prints a line that each frame overwrites; a line a frame where the output is no terminal."""

    width: int | None
    """The terminal's width; None where the output is none."""
    started: bool = field(default=False, init=False)
    """Whether the line has been printed."""

    def report(self, result: FrameResult) -> None:
        text = printable(str(result)).replace("\n", "\\n")
        if self.width is None:
            click.echo(text)
            return
        room = max(self.width - 1, 1)  # a full line would begin another
        shown = set_cell_size(text, room) if cell_len(text) > room else text
        sys.stdout.write(f"{CLEAR_LINE}{shown}")
        sys.stdout.flush()
        self.started = True

    def end(self) -> None:
        if self.started:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self.started = False


@dataclass(frozen=True)
class WatchOptions:
    """Options of `watch`: which frames are reported, how, and where pictures are written."""

    frames: int | None = None
    """The number of frames; None: to the end, or until it is interrupted."""
    folder: str | None = None
    """The folder for the frames with their classes drawn on them; None for none."""
    wide: bool = False
    """Whether lines may be longer than the terminal is wide."""
    as_json: bool = False
    """Whether each frame is reported as a line of JSON."""


def watch(
    camera: Camera,
    classifier: FrameClassifier,
    environment: Callable[[], Mapping[str, Any]],
    options: WatchOptions,
) -> None:
    """Report each frame of `camera` until the number of frames, the video's end, or Ctrl-C.

    environment: describes model, backend and device, and is printed first. It is called after the
    first frame, when `auto` has chosen a backend. Raises ModelError where a camera gives no more
    frames, or pictures cannot be written.
    """
    target = None if options.folder is None else parse_folder(options.folder)
    for path in target.glob(FRAMES) if target is not None else ():
        check_absent("--drawn", path)
    out = Screen(options.wide)
    reporter: FrameReporter = JsonLines() if options.as_json else StatusLine(out.width)
    last, about = None, dict[str, Any]()
    try:
        for last in classifier.results(camera, options.frames):
            if not about:
                about = {"input": camera.name, **environment()}
                _begin(out, about, options.as_json)
            reporter.report(last)
            if target is not None:
                _draw(target, last)
    except KeyboardInterrupt:  # the usual end of a camera
        if last is None:
            raise
    finally:
        reporter.end()
    if last is not None and not options.as_json:
        out.say(_summary(last, about))
        if target is not None:
            out.say(f"drawn: {count_of(last.number + 1, 'picture')} in {target}")


def _begin(out: Screen, about: Mapping[str, Any], as_json: bool) -> None:
    """Print what is printed once, before the first frame's result."""
    if as_json:
        print_json(dict(about), indent=None)
    else:
        for note in about["notes"]:
            out.say(note)


FRAMES = "frame-*.png"
"""The files that `_draw` writes."""


def _draw(folder: Path, result: FrameResult) -> None:
    drawn = result.content.draw(result.frame)
    write_picture(folder / f"frame-{result.number:06}.png", drawn)


def _summary(last: FrameResult, about: Mapping[str, Any]) -> str:
    """Describe the number of frames, and their rate without the first, whose run made the plan."""
    rate = f", {last.number / last.seconds:.1f} a second" if last.number else ""
    frames = count_of(last.number + 1, "frame")
    return f"{frames}{rate} on {about['backend']}: {about['device']}"


LEFT_OUT = 2
"""The exit status where some pictures could not be read."""
MOST_SAMPLES, MOST_NUMBERS = 100, 1 << 20
"""Limits of a run without --batch: samples, and elements of all of them."""


@click.command(cls=WritingCommand)
@click.argument("model", type=ModelName())
@click.argument("inputs", nargs=-1, type=FileName())
@backend_option
@click.option(
    "--prefer",
    type=click.Choice(PREFERENCES),
    default=PREFERENCES[0],
    show_default=True,
    help="What auto takes: the fastest here, or gpu to keep the CPU free.",
)
@click.option(
    "--top",
    type=click.IntRange(1),
    help="Classes of a sample to show, 1 unless given; of a detector, objects of a picture at the "
    "most, the best.",
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
    top: int | None,
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
      glnn run vgg16 photo.jpg --weights vgg16.safetensors --top 5 --labels classes.txt
      glnn run net.onnx 'photos/*.jpg' --preprocessing imagenet --json
      glnn run yolo11n.onnx photos/ --drawn out/ --confidence 0.4
      glnn run net.onnx /dev/video0 --frames 100
      glnn run lenet photo.png --trace trace.json     (for ui.perfetto.dev)
      glnn run detector.onnx x.npy --dump result.npz --tensor heat
      glnn run lenet photo.png --dump tensors.npz --tensor c1 --tensor 'sigmoid*'
    """
    loaded = load_with(model, weights)
    if not as_json:
        note_random_weights(loaded, model, "; give --weights")
    options: dict[str, Any] = {"gpu": gpu, "limits": limits, "kernels": kernels, "fused": fused}
    options |= {"precision": precision, "prefer": prefer}
    runner = ModelRunner(
        open_session=partial(InferenceSession, loaded, backend, **options),
        make_dump=partial(Dump.from_options, dump, tensors, loaded),
        trace=None if trace is None else Trace(),
        autotunes=backend == "auto",
        stride=stride_of(loaded.metadata, loaded.output_shapes.values()),
    )
    if (live := live_input(inputs, frames)) is not None:
        check_live(live, {"batch": batch, "dump": dump, "trace": trace, "show": pictures.show})
        _watch(runner, loaded, live, pictures, top, frames, wide, as_json)
        return 0
    result = _run(runner, loaded, inputs, model, pictures, batch, top, not as_json)
    report = result.to_json()
    if runner.trace is not None and trace is not None:
        report |= save_trace(runner.trace, trace)
    if as_json:
        print_json({**_environment(runner.session), **report})
    else:
        result.show(Screen(wide), runner.session, trace)
    return result.code


@dataclass(frozen=True)
class RunResult:
    """The result of `glnn run`."""

    outputs: Classes | Detections | RunOutputs
    """The model's outputs."""
    dump: Dump | None
    """The dumped tensors."""
    drawn: AnnotatedPictures | None = None
    """The annotated pictures."""
    source: SampleStream | None = None
    """The source of the samples, where these are files or arrays."""
    complete: bool = True
    """Whether all samples were run; False after Ctrl-C."""

    @property
    def code(self) -> int:
        """The exit status."""
        if not self.complete:
            return INTERRUPTED
        return LEFT_OUT if self.source is not None and self.source.failed else 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain dicts, lists and numbers."""
        report = self.outputs.to_json()
        if self.source is not None and self.source.reader is not None:
            report |= {**self.source.reader.to_json(), "failed": list(self.source.failed)}
        report |= {} if self.drawn is None else self.drawn.to_json()
        report |= {} if self.complete else {"interrupted": True}
        return report | ({} if self.dump is None else {"dump": self.dump.to_json()})

    def show(self, out: Screen, session: InferenceSession, trace: str | None) -> None:
        """Print the outputs, the backend and device, and the files that were written."""
        about = _environment(session)
        software = f" (software: {about['software']}, on the CPU)" if about["software"] else ""
        self.outputs.show(out, f"{about['backend']}: {about['device']}{software}")
        if self.source is not None and self.source.failed:
            count = len(self.source.failed)
            out.say(f"could not be read: {count_of(count, 'picture')}, named above")
        if self.drawn is not None and self.drawn.files:
            folder = Path(self.drawn.files[0]).parent
            out.say(f"drawn: {count_of(len(self.drawn.files), 'picture')} in {folder}")
        if self.dump is not None:
            self.dump.show(out)
        if session.choice is not None:
            out.say(f"auto takes {session.choice}")
        if trace is not None:
            out.say(f"traced to {trace}, which ui.perfetto.dev shows")
        if not self.complete:
            total = None if self.source is None else self.source.total
            say(f"interrupted: these are the results of what was done of {total}")


def _environment(session: InferenceSession) -> dict[str, Any]:
    """Describe the model, backend and device.

    choice: of `auto`; None where a backend was named.
    """
    device, choice = session.backend.device, session.choice
    return {
        "model": session.model.name,
        "backend": session.backend.name,
        "device": device.capabilities.renderer if device else "CPU (NumPy)",
        "software": device.capabilities.software if device else None,
        "choice": choice.to_json() if choice else None,
        "random_weights": session.model.has_random_weights,
    }


def _run(
    runner: ModelRunner,
    loaded: Model,
    inputs: tuple[str, ...],
    model: str,
    pictures: PictureOptions,
    batch: int | None,
    top: int | None,
    shown: bool,
) -> RunResult:
    """Run the model on the inputs of the command line."""
    detector, output = make_detector(loaded, pictures, top), classifier_output(loaded)
    if detector is None and output is None:
        _refuse_class_options(loaded, model, pictures, top)
    if detector is None and output is None and (not inputs or not takes_samples(loaded)):
        _check_options(pictures, None)
        feeds = read_feeds(loaded, inputs, model, batch, {}, most=MOST_SAMPLES, random=False)
        runner.open(1)
        with report_work("running", loaded.name):
            results = runner.run(feeds.arrays)
        return RunResult(RunOutputs.from_results(results, explain_undecoded(loaded)), runner.dump)
    paths = match_files(loaded, model, inputs).get(loaded.inputs[0].name, ())
    source = open_samples(
        loaded, paths, model, pictures.fields, pictures.preprocessing, pictures.keeps
    )
    _check_options(pictures, source)
    if detector is None and output is None:
        samples = source.read_all(batch_size(loaded, model, batch, MOST_SAMPLES))
        count = batch_size(loaded, model, batch, len(samples.x))
        runner.open(1)
        x = {loaded.inputs[0].name: np.resize(samples.x, (count, *samples.x.shape[1:]))}
        notes = [
            *explain_undecoded(loaded),
            *source.notes,
            *samples.notes,
            *_count_notes(len(samples.x), count, source),
        ]
        with report_work("running", loaded.name):
            results = runner.run(x)
        return RunResult(RunOutputs.from_results(results, notes), runner.dump, None, source)
    count = batch_size(loaded, model, batch, _samples_a_run(loaded, source))
    result: Classes | Detections
    if detector is not None:
        result = Detections(detector, loaded.inputs[0], notes=list(source.notes))
    else:
        assert output is not None
        labels, notes = class_names(pictures.labels, loaded.metadata, classes_of(loaded, output))
        result = Classes(output, top or 1, labels, notes=[*notes, *source.notes])
    drawn = AnnotatedPictures.from_options(pictures, source)
    runner.open(-(-(source.total or 0) // count))
    complete = runner.run_all(source, count, result, drawn, shown)
    return RunResult(result, runner.dump, drawn, source, complete)


def _samples_a_run(model: Model, source: SampleStream) -> int:
    """Return the samples of a run without --batch: the larger a sample, the fewer."""
    numbers = prod(n for n in model.inputs[0].shape[1:] if isinstance(n, int))
    chosen = None if source.reader is None else source.reader.chosen
    size = None if chosen is None else chosen.preprocessing.crop or chosen.preprocessing.resize
    if size is not None and any(isinstance(n, str) for n in model.inputs[0].shape[1:]):
        numbers *= prod(size) if isinstance(size, tuple) else size * size
    return max(1, min(MOST_SAMPLES, MOST_NUMBERS // max(1, numbers)))


def _count_notes(read: int, count: int, source: SampleStream) -> list[str]:
    """Return a note where one run takes another number of samples than there are."""
    available = read if source.total is None else source.total - len(source.failed)
    takes = f"one run takes {count_of(count, 'sample')}"
    if available > count:
        return [f"{takes}: the first of {available}, the others are left out"]
    repeated = "the one is" if available == 1 else f"the {available} are"
    return [f"{takes}: {repeated} repeated"] if available < count else []


def _watch(
    runner: ModelRunner,
    loaded: Model,
    name: str,
    pictures: PictureOptions,
    top: int | None,
    frames: int | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Run the model on the frames of a camera or a video."""
    detector, output = make_detector(loaded, pictures, top), classifier_output(loaded)
    decoder: Detector | ClassOutput
    notes: list[str] = []
    if detector is not None:
        decoder = detector
    elif output is not None:
        labels, notes = class_names(pictures.labels, loaded.metadata, classes_of(loaded, output))
        decoder = ClassOutput(output, labels, top or 1)
    else:
        gives = f"expected a model that gives classes or objects, not {describe_outputs(loaded)}"
        raise ModelError(f"{name}: {gives}")
    reader = SampleReader.for_model(loaded, pictures.fields, pictures.preprocessing)
    with Camera(name) as camera:
        runner.open(1)
        classifier = FrameClassifier(runner, reader, decoder)
        about = {**reader.to_json(), "notes": [*notes, *reader.notes]}
        options = WatchOptions(frames, pictures.drawn, wide, as_json)
        watch(camera, classifier, lambda: {**_environment(runner.session), **about}, options)


def _refuse_class_options(
    model: Model, name: str, pictures: PictureOptions, top: int | None
) -> None:
    """Raise ModelError where an option for classes or objects is given, as `model` gives neither.

    name: the model's on the command line.
    """
    options = {
        "--labels": pictures.labels is not None,
        "--drawn": pictures.drawn is not None,
        "--show": pictures.show,
        "--top": top is not None,
    }
    first = next((option for option, is_set in options.items() if is_set), None)
    if first is not None:
        refuse_class_option(first, name, model)


def _check_options(pictures: PictureOptions, source: SampleStream | None) -> None:
    """Raise ModelError where an option for pictures is given without pictures."""
    if pictures.option is not None and (source is None or source.reader is None):
        raise ModelError(f"{pictures.option} is for pictures: there are none among the inputs")
