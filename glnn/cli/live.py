"""`glnn run` on a camera or a video: classes or objects of each frame as it comes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import rich_click as click
from rich.cells import cell_len, set_cell_size

from glnn.cli.annotate import folder_of
from glnn.cli.options import print_json
from glnn.cli.results import Best, best_of, frame_of, scores_of
from glnn.cli.runner import ModelRunner, repeat_to
from glnn.cli.screen import Screen
from glnn.cli.sources import Reader
from glnn.errors import ModelError, printable
from glnn.images.camera import Camera, Frame, is_camera, is_video
from glnn.images.detection import DetectedObject, Detector
from glnn.images.drawing import draw_labels, draw_objects
from glnn.images.files import write_picture
from glnn.images.labels import Labels

LATEST = 30  # frames of which the rate is taken
RENEW = "\r\x1b[K"
"""The sequence by which a terminal overwrites the line."""

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
    for option, given in options.items():
        if given:
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

    best: Sequence[Best]

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
    """Frames a second, of the latest ones; None of the first."""
    sight: FrameContent
    """The classes or objects."""
    frame: Frame
    """The frame itself."""

    def to_json(self) -> dict[str, Any]:
        """Return number, time, rate and content as plain dicts, lists and numbers."""
        about = {"frame": self.number, "seconds": self.seconds, "frames_per_second": self.rate}
        return {**about, **self.sight.to_json()}

    def __str__(self) -> str:
        """Describe the frame in one line, the best class or object first."""
        rate = "" if self.rate is None else f" ({self.rate:.1f} a second)"
        return f"frame {self.number}{rate}: {self.sight}"


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
    """A model that looks at frames, one a run."""

    running: ModelRunner
    """The runs of the model; begun."""
    reader: Reader
    """The reader that makes samples of frames."""
    reads: Detector | ClassOutput
    """The reader of the model's outputs."""

    def look(self, frame: Frame) -> FrameContent:
        """Classify one frame, or detect its objects. Raises what the session's runs raise."""
        info = self.reader.info
        x = self.reader.sample(frame)
        results = self.running.run({info.name: repeat_to(x, info.shape[0])})
        if isinstance(self.reads, Detector):
            size = frame.shape[0], frame.shape[1]
            return FrameObjects(self.reads.detect(results, frame_of(x, info), [size])[0])
        scores = scores_of(results, self.reads.output, 1)
        return FrameClasses(best_of(scores, self.reads.top, self.reads.labels)[0])

    def results(self, camera: Camera, frames: int | None) -> Iterator[FrameResult]:
        """Yield each frame, at most `frames` of them, with its classes or objects."""
        latest: deque[float] = deque(maxlen=LATEST + 1)
        started = 0.0
        for number, frame in enumerate(islice(camera, frames)):
            sight = self.look(frame)
            now = perf_counter()
            started = started or now
            latest.append(now)
            rate = (len(latest) - 1) / (now - latest[0]) if number else None
            yield FrameResult(number, now - started, rate, sight, frame)


class FrameReporter(Protocol):
    """A reporter of the result of each frame."""

    def tell(self, seen: FrameResult) -> None:
        """Say it of one frame."""

    def end(self) -> None:
        """End the report after the last frame, also after an error."""


class Lines:
    """A line of JSON for each frame."""

    def tell(self, seen: FrameResult) -> None:
        print_json(seen.to_json(), indent=None)

    def end(self) -> None:
        pass


@dataclass
class StatusLine:
    """A status line that each frame overwrites; a line a frame where the output is no terminal."""

    width: int | None
    """The terminal's; None where it is none."""
    started: bool = field(default=False, init=False)
    """Whether the line is there."""

    def tell(self, seen: FrameResult) -> None:
        text = printable(str(seen)).replace("\n", "\\n")
        if self.width is None:
            click.echo(text)
            return
        room = max(self.width - 1, 1)  # a full line would begin another
        shown = set_cell_size(text, room) if cell_len(text) > room else text
        sys.stdout.write(f"{RENEW}{shown}")
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
    watching: FrameClassifier,
    about: Callable[[], Mapping[str, Any]],
    how: WatchOptions,
) -> None:
    """Say what is seen, until there were so many frames, the video ends, or somebody interrupts it.

    about: what runs where, asked after the first frame, by which `auto` has chosen; in JSON the
    first line says it. Raises ModelError where a camera gives no frames any more, or pictures
    cannot be written.
    """
    target = None if how.folder is None else folder_of(how.folder)
    out = Screen(how.wide)
    teller: FrameReporter = Lines() if how.as_json else StatusLine(out.width)
    last, where = None, dict[str, Any]()
    try:
        for last in watching.results(camera, how.frames):
            if not where:
                where = {"input": camera.name, **about()}
                _begin(out, where, how.as_json)
            teller.tell(last)
            if target is not None:
                _draw(target, last)
    except KeyboardInterrupt:  # which is how a camera is ended
        if last is None:
            raise
    finally:
        teller.end()
    if last is not None and not how.as_json:
        out.say(_summary(last, where))
        if target is not None:
            out.say(f"drawn: {last.number + 1} pictures in {target}")


def _begin(out: Screen, where: Mapping[str, Any], as_json: bool) -> None:
    """Say what is said once."""
    if as_json:
        print_json(dict(where), indent=None)
    else:
        for note in where["notes"]:
            out.say(note)


def _draw(folder: Path, seen: FrameResult) -> None:
    write_picture(folder / f"frame-{seen.number:06}.png", seen.sight.draw(seen.frame))


def _summary(last: FrameResult, where: Mapping[str, Any]) -> str:
    """Describe the number of frames, and their rate without the first, which had a plan made."""
    rate = f", {last.number / last.seconds:.1f} a second" if last.number else ""
    return f"{last.number + 1} frames{rate} on {where['backend']}: {where['device']}"
