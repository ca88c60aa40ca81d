"""Runs of a model for `glnn run`, dumps of its tensors, and annotated pictures."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import rich_click as click

from glnn.cli.model_options import PictureOptions
from glnn.cli.options import OutputFile, check_absent, check_writable
from glnn.cli.results import Classes, Detections
from glnn.cli.screen import Column, Screen, Table, figures, progress, size
from glnn.cli.sources import Inputs, Picture, PictureFile, SampleStream
from glnn.core.fileio import make_folder
from glnn.core.tensor_info import show
from glnn.core.types import Array, Shape
from glnn.errors import ModelError, fault
from glnn.images.files import has_picture_name, write_picture
from glnn.images.preprocessing import ImageInput
from glnn.images.preprocessing_config import check_multiples
from glnn.model import Model
from glnn.model.loaded_model import find_values
from glnn.model.npz import save_arrays
from glnn.profiling import Trace
from glnn.session import InferenceSession

MOST_SHOWN = 10
RUNS = "run-*.npz"
"""The files in the folder of --dump, one of each run."""
T = TypeVar("T")


@dataclass
class AnnotatedPictures:
    """Draws classes or objects on pictures, and writes these to files or shows them in a viewer."""

    targets: dict[str, Path]
    """The file to write for each picture, by the sample's name; empty without --drawn."""
    show: bool = False
    """Whether a viewer shows the first MOST_SHOWN."""
    files: list[str] = field(default_factory=list)
    """The files that were written."""
    shown: int = 0
    """The number of pictures that a viewer has shown."""

    @classmethod
    def from_options(
        cls, options: PictureOptions, source: SampleStream
    ) -> AnnotatedPictures | None:
        """Make the object that --drawn and --show ask for; None where neither is given.

        Raises ModelError where there is no picture or no display, where nothing can be written,
        and where a picture would be written twice or over one that is read.
        """
        if not options.keeps:
            return None
        if options.show and not _has_display():
            raise ModelError("--show: there is no display here: --drawn FOLDER writes pictures")
        targets: dict[str, Path] = {}
        if options.drawn is not None:
            read = [part.path for part in source.parts if isinstance(part, PictureFile)]
            targets = {str(path): _target(options.drawn, path) for path in read}
            _check(read, list(targets.values()))
            parse_folder(options.drawn)
        return cls(targets, options.show)

    def add(
        self, inputs: Inputs, results: Sequence[T], draw: Callable[[Picture, T], Picture]
    ) -> None:
        """Draw the results of a run on its pictures. Raises ModelError where one cannot be written
        or shown.
        """
        for name, picture, result in zip(inputs.names, inputs.pictures, results, strict=True):
            if picture is None:
                continue
            if not self.targets and self.shown >= MOST_SHOWN:
                return
            drawn = draw(picture, result)
            if name in self.targets:
                write_picture(self.targets[name], drawn)
                self.files.append(str(self.targets[name]))
            if self.show and self.shown < MOST_SHOWN:
                _view(drawn, name)
                self.shown += 1

    def to_json(self) -> dict[str, Any]:
        """Return files and count as plain dicts, lists and numbers."""
        return {"drawn": {"files": list(self.files), "shown": self.shown}}


def _target(folder: str, path: Path) -> Path:
    """Return the file to write for `path`: of the same name where a picture can have it."""
    return Path(folder) / (path.name if has_picture_name(path) else f"{path.name}.png")


def _check(read: Sequence[Path], targets: Sequence[Path]) -> None:
    """Raise ModelError where a picture would be lost."""
    sources, written = {os.path.realpath(path) for path in read}, set()
    for target in targets:
        if os.path.realpath(target) in sources:
            raise ModelError(f"--drawn: {target} is read: expected another folder")
        if target in written:
            raise ModelError(f"--drawn: two pictures are called {target.name}")
        check_absent("--drawn", target)
        written.add(target)


def parse_folder(text: str) -> Path:
    """Make the folder of --drawn where it is missing, and return it.

    Raises ModelError where it cannot be made.
    """
    try:
        return make_folder(text)
    except (OSError, ValueError) as error:
        raise ModelError(f"--drawn: cannot write to {text}: {fault(error)}") from None


def _has_display() -> bool:
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _view(picture: Picture, title: str) -> None:
    """Show `picture` in Pillow's viewer. Raises ModelError where there is none."""
    from PIL import Image, ImageShow

    if not ImageShow.show(Image.fromarray(np.ascontiguousarray(picture)), title=title):
        raise ModelError("--show: no program that shows pictures was found (xdg-open, display)")


Command = TypeVar("Command", bound=Callable[..., Any])


def _is_run(path: Path) -> bool:
    """Return True where `path` has a name that --dump gives to files in a folder."""
    return fnmatch(path.name, RUNS)


def _is_folder(target: str) -> bool:
    """Return True where `target` of --dump is a folder for a file of each run."""
    return not target.endswith(".npz")


def dump_options(command: Command) -> Command:
    """`--dump` and `--tensor`."""
    command = click.option(
        "--tensor",
        "tensors",
        metavar="NAME",
        multiple=True,
        help="A tensor or layer to dump, or a pattern as conv*; may be repeated. All unless given.",
    )(command)
    return click.option(
        "--dump",
        metavar="FILE.npz|FOLDER",
        type=OutputFile(folder=_is_folder, inside=_is_run),
        help="Write tensors inside the model there; into a folder one file for each run.",
    )(command)


@dataclass(frozen=True)
class DumpedTensor:
    """A tensor in the files of a dump."""

    name: str
    shape: Shape
    dtype: str
    nbytes: int
    """Bytes of its array, in all files together."""


@dataclass
class Dump:
    """The files that --dump writes tensors of each run to."""

    target: Path
    """The .npz file, or the folder of several."""
    names: tuple[str, ...]
    """The names of the tensors to dump."""
    files: list[str] = field(default_factory=list)
    """The files that were written."""
    tensors: dict[str, DumpedTensor] = field(default_factory=dict)
    """The tensors in the files, with their shapes in the first file."""

    @classmethod
    def from_options(
        cls, target: str | None, tensors: Sequence[str], model: Model, runs: int
    ) -> Dump | None:
        """Return the dump that the options ask for; None where --dump is not given.

        runs: their number. Raises ModelError for an unknown tensor, where nothing can be written,
        and where one file is to hold several runs.
        """
        if target is None:
            if tensors:
                raise ModelError("--tensor says what --dump writes: --dump is missing")
            return None
        result = find_values(model, tensors or None)
        if _is_folder(target):
            return cls(_folder(target), tuple(result))
        if runs > 1:
            raise ModelError(
                f"--dump: {target} holds one run, these are {runs}: give a folder, "
                "or a --batch of all samples"
            )
        return cls(Path(target), tuple(result))

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Write the tensors of one run."""
        path = self.target
        if path.suffix != ".npz":
            path = path / f"run-{len(self.files):04d}.npz"
        save_arrays(path, arrays)
        self.files.append(str(path))
        for name, array in arrays.items():
            first = self.tensors.get(name, DumpedTensor(name, array.shape, str(array.dtype), 0))
            nbytes = first.nbytes + array.nbytes
            self.tensors[name] = DumpedTensor(name, first.shape, first.dtype, nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(one.nbytes for one in self.tensors.values())

    def to_json(self) -> dict[str, Any]:
        """Return files and tensors as plain dicts, lists and numbers."""
        tensors = [
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "bytes": t.nbytes}
            for t in self.tensors.values()
        ]
        return {"files": list(self.files), "bytes": self.nbytes, "tensors": tensors}

    def show(self, out: Screen) -> None:
        """Print what was written."""
        rows = Table((Column("tensor"), Column("shape", 1), Column("type", 2), figures("size")))
        for one in self.tensors.values():
            rows.add(one.name, show(one.shape), one.dtype, size(one.nbytes))
        where = (
            self.files[0] if len(self.files) == 1 else f"{len(self.files)} files in {self.target}"
        )
        out.show(rows, f"dumped to {where}, {size(self.nbytes)}")


def _folder(target: str) -> Path:
    """Make the folder `target` where it is missing, and return it.

    Raises ModelError where it cannot be used.
    """
    folder = Path(target)
    if folder.is_file():
        raise ModelError(
            f"--dump: {target} is a file: expected a name that ends in .npz, or a folder"
        )
    try:
        make_folder(folder, parents=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"--dump: cannot write to {target}: {fault(error)}") from None
    for path in folder.glob(RUNS):
        check_absent("--dump", path)
    check_writable("--dump", os.path.join(target, "run-0000.npz"))
    return folder


FIRST = "first run: auto sees once which backend is the fastest"
"""The bar's text until the first run is done, in which `auto` may time the backends."""


def repeat_to(x: Array, size: Any) -> Array:
    """Repeat the samples x (n, ...) where the model takes a fixed, larger batch.

    size: the batch of the model's input, an integer where it is fixed.
    """
    if isinstance(size, int) and len(x) < size:
        return np.resize(x, (size, *x.shape[1:]))
    return x


@dataclass
class ModelRunner:
    """Runs a model in a session that is opened late, after the inputs have been checked.

    Each run may be traced, and its tensors dumped.
    """

    open_session: Callable[[], InferenceSession]
    """Opens the session."""
    make_dump: Callable[[int], Dump | None]
    """Makes the dump for a number of runs."""
    trace: Trace | None = None
    """The trace that collects events."""
    autotunes: bool = False
    """Whether `auto` may time the backends in the first run."""
    stride: int = 1
    """Heights and widths of pictures must be multiples of it."""
    sessions: list[InferenceSession] = field(default_factory=list)
    """The session, once it is open; empty before."""
    dump: Dump | None = None
    """The dump, once the session is open."""

    @property
    def session(self) -> InferenceSession:
        """The session. Raises IndexError before `open`."""
        return self.sessions[0]

    def open(self, runs: int) -> None:
        """Open the session for `runs` runs. Raises what that raises, and ModelError for --dump."""
        self.dump = self.make_dump(runs)
        self.sessions.append(self.open_session())

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return all outputs for `feeds`, by name."""
        for info in self.session.model.inputs if self.stride > 1 else ():
            image = ImageInput.in_shape(info.shape)
            if image is not None and info.name in feeds and feeds[info.name].ndim == 4:
                sides = feeds[info.name].shape[2:] if image.first else feeds[info.name].shape[1:3]
                check_multiples((sides[0], sides[1]), self.stride, f"input {info.name!r}")
        names = self.session.model.outputs
        if self.trace is None:
            results = dict(zip(names, self.session.run(None, feeds), strict=True))
        else:
            shapes = {name: array.shape for name, array in feeds.items()}
            result = self.trace.run(self.session.plan(shapes), feeds)
            results = {name: result[name] for name in names}
        if self.dump is not None:
            self.dump.write(self.session.intermediates(feeds, self.dump.names))
        return results

    def run_all(
        self,
        source: SampleStream,
        batch: int,
        collector: Classes | Detections,
        annotated: AnnotatedPictures | None,
        shown: bool,
    ) -> bool:
        """Run all samples, `batch` at a time, and add the outputs to `collector` and `annotated`.

        shown: whether a progress bar is drawn. Returns False where it was interrupted after some
        samples, whose outputs are collected.
        """
        info = self.session.get_inputs()[0]
        with progress(shown) as bar:
            may_time = self.autotunes and self.trace is None and not self.session.restored
            doing = "classifying" if isinstance(collector, Classes) else "detecting"
            first = FIRST if may_time else doing
            task = bar.add_task(first, total=source.total)
            try:
                for inputs in source.batches(batch):
                    results = self.run({info.name: repeat_to(inputs.x, info.shape[0])})
                    best: Sequence[Any] = collector.add(inputs, results)
                    if annotated is not None:
                        annotated.add(inputs, best, collector.draw)
                    done = len(collector.names) + len(source.failed)
                    bar.update(task, description=doing, completed=done)
            except KeyboardInterrupt:
                collector.trim()
                if not collector.names:
                    raise
                return False
        return True
