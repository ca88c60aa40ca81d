"""`--drawn` and `--show`: pictures with their classes or objects drawn on them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from glnn.cli.picture_options import PictureOptions
from glnn.cli.sources import Inputs, Picture, PictureFile, Source
from glnn.errors import ModelError, fault
from glnn.images.files import has_picture_name, write_picture

MOST_SHOWN = 10
T = TypeVar("T")


@dataclass
class AnnotatedPictures:
    """The pictures with classes or objects drawn on them: files to write, and a viewer."""

    targets: dict[str, Path]
    """The file to write for each that is read, by the sample's name; empty where none is."""
    show: bool = False
    """Whether a viewer shows the first MOST_SHOWN."""
    files: list[str] = field(default_factory=list)
    """The files that were written."""
    shown: int = 0
    """The number of pictures that a viewer has shown."""

    @classmethod
    def from_options(cls, options: PictureOptions, source: Source) -> AnnotatedPictures | None:
        """Return the outputs that --drawn and --show ask for; None where neither is given.

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
            folder_of(options.drawn)
        return cls(targets, options.show)

    def take(
        self, inputs: Inputs, results: Sequence[T], draw: Callable[[Picture, T], Picture]
    ) -> None:
        """Draw what was found in the samples of a run. Raises ModelError where that cannot be."""
        for name, picture, found in zip(inputs.names, inputs.pictures, results, strict=True):
            if picture is None:
                continue
            if not self.targets and self.shown >= MOST_SHOWN:
                return
            drawn = draw(picture, found)
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
    sources, written = {path.resolve() for path in read}, set()
    for target in targets:
        if target.resolve() in sources:
            raise ModelError(f"--drawn: {target} is read: expected another folder")
        if target in written:
            raise ModelError(f"--drawn: two pictures are called {target.name}")
        written.add(target)


def folder_of(text: str) -> Path:
    """Make the folder of --drawn where it is missing, and return it.

    Raises ModelError where it cannot be made.
    """
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
        return Path(text)
    except (OSError, ValueError) as error:
        raise ModelError(f"--drawn: cannot write to {text}: {fault(error)}") from None


def _has_display() -> bool:
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _view(picture: Picture, title: str) -> None:
    """Have Pillow's viewer show it. Raises ModelError where there is none."""
    from PIL import Image, ImageShow

    if not ImageShow.show(Image.fromarray(np.ascontiguousarray(picture)), title=title):
        raise ModelError("--show: no program that shows pictures was found (xdg-open, display)")
