"""`--dump` and `--tensor`: tensors inside the model, written to .npz files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

from glnn.cli.options import check_writable
from glnn.cli.output_files import OutputFile
from glnn.cli.screen import Column, Screen, Table, figures, size
from glnn.errors import ModelError, fault
from glnn.model import Model
from glnn.model.npz import save_arrays
from glnn.model.values import find_values
from glnn.tensor_info import show
from glnn.types import Array, Shape

Command = TypeVar("Command", bound=Callable[..., Any])


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
        type=OutputFile(inside="run-*.npz"),
        help="Write tensors inside the model there; into a folder one file for each run.",
    )(command)


@dataclass(frozen=True)
class Dumped:
    """A tensor as it was written."""

    name: str
    shape: Shape
    dtype: str
    nbytes: int
    """Of its array, in all files together."""


@dataclass
class Dump:
    """Where tensors go, run by run."""

    target: Path
    """The .npz file, or the folder of several."""
    names: tuple[str, ...]
    """Of what is wanted."""
    files: list[str] = field(default_factory=list)
    """Those that were written."""
    tensors: dict[str, Dumped] = field(default_factory=dict)
    """What they hold, with the shapes of the first."""

    @classmethod
    def asked(
        cls, target: str | None, tensors: Sequence[str], model: Model, runs: int
    ) -> Dump | None:
        """What was asked for; None where nothing was.

        runs: how many there will be. Raises ModelError for an unknown tensor, where nothing can be
        written, and where one file is to hold several runs.
        """
        if target is None:
            if tensors:
                raise ModelError("--tensor says what --dump writes: --dump is missing")
            return None
        if not target:
            raise ModelError("--dump must name an .npz file or a folder, got an empty text")
        found = find_values(model, tensors or None)
        if not target.endswith(".npz"):
            return cls(_folder(target), tuple(found))
        if runs > 1:
            raise ModelError(
                f"--dump: {target} holds one run, these are {runs}: give a folder, "
                "or a --batch of all samples"
            )
        check_writable("--dump", target)
        return cls(Path(target), tuple(found))

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Write the tensors of one run."""
        path = self.target
        if path.suffix != ".npz":
            path = path / f"run-{len(self.files):04d}.npz"
        save_arrays(path, arrays)
        self.files.append(str(path))
        for name, array in arrays.items():
            known = self.tensors.get(name, Dumped(name, array.shape, str(array.dtype), 0))
            nbytes = known.nbytes + array.nbytes
            self.tensors[name] = Dumped(name, known.shape, known.dtype, nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(one.nbytes for one in self.tensors.values())

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts, lists and numbers."""
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
    """The folder `target`, made where it is missing. Raises ModelError where it cannot be used."""
    folder = Path(target)
    try:
        folder.mkdir(exist_ok=True)
    except (OSError, ValueError) as error:
        raise ModelError(f"--dump: cannot write to {target}: {fault(error)}") from None
    check_writable("--dump", os.path.join(target, "run-0000.npz"))
    return folder
