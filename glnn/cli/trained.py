"""What `glnn train` writes, and what it says of training."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from glnn.backends import Backend
from glnn.choice import Choice
from glnn.cli.options import check_writable
from glnn.cli.screen import Screen, Table, figures, number, say
from glnn.errors import GlnnError, ModelError, extra
from glnn.model import Model
from glnn.model.formats import find
from glnn.training import History

SHOWN = 30  # epochs of a table, names of classes
PLOTS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Files:
    """What is written."""

    output: str
    """The trained model."""
    checkpoint: str | None
    """What training goes on from."""
    plot: str | None
    """Loss and accuracy over the epochs."""
    overwrite: bool
    """Whether what is there may be replaced."""
    resume: bool
    """Whether training goes on from the checkpoint."""
    every: int | None
    """Steps from one checkpoint to the next."""

    def check(self) -> None:
        """Raise GlnnError now where something could not be written later, or should not be."""
        if self.checkpoint is None and self.resume:
            raise GlnnError("--resume: expected --checkpoint FILE to go on from, got none")
        if self.checkpoint is None and self.every:
            raise GlnnError("--every: expected --checkpoint FILE to write, got none")
        taken: set[Path] = set()
        for option in ("output", "plot", "checkpoint"):
            if (named := getattr(self, option)) is not None:
                if (place := Path(named).resolve()) in taken:
                    raise GlnnError(f"--{option}: {named} is written for something else")
                taken.add(place)
        for option, path in (("output", self.output), ("plot", self.plot)):
            if path is not None:
                self._check(option, path)
        if self.checkpoint is not None:
            if not self.resume and not self.overwrite and Path(self.checkpoint).exists():
                raise GlnnError(
                    f"--checkpoint: {self.checkpoint} is there already: --resume goes on from it, "
                    "--overwrite begins anew"
                )
            check_writable("--checkpoint", self.checkpoint)

    def _check(self, option: str, path: str) -> None:
        if option == "output":
            find(path, None)
        elif Path(path).suffix not in PLOTS:
            raise GlnnError(f"--plot: expected a file of {', '.join(PLOTS)}, got {path}")
        elif find_spec("matplotlib") is None:
            raise GlnnError(f"--plot needs matplotlib: {extra('bench')}")
        if not self.overwrite and Path(path).exists():
            raise GlnnError(f"--{option}: {path} is there already: --overwrite replaces it")
        check_writable(f"--{option}", path)

    def try_model(self, model: Model) -> None:
        """Raise ModelError now where the output could not be written: its format has no word for
        `model`, or the disk is full.
        """
        output = Path(self.output)
        with TemporaryDirectory(prefix=".", dir=output.parent) as folder:
            try:
                model.save(Path(folder, output.name))
            except ModelError as error:
                said = str(error).replace(f"{folder}/", "")
                raise ModelError(f"--output: {said}") from None


@dataclass(frozen=True)
class Trained:
    """What was trained, and how that went."""

    model: str
    """The model's name."""
    backend: Backend
    """What computed."""
    choice: Choice | None
    """What "auto" chose, by which times; None where a backend was named."""
    history: History
    """The epochs."""
    samples: tuple[int, int]
    """How many were trained with, and how many held out."""
    seconds: float
    """What it took."""
    files: Files
    """What is written."""
    classes: tuple[str, ...] = ()
    """Names of classes that the data gave."""

    @property
    def device(self) -> str:
        """What GL calls the GPU."""
        device = self.backend.device
        return device.capabilities.renderer if device else "CPU (NumPy)"

    def write(self, model: Model) -> None:
        """Write `model`, which was trained, and the plot."""
        if not isfinite(self.history[-1].loss):
            say(
                f"the loss is {self.history[-1].loss} in the end: a lower --lr may help, unless "
                "DATA has numbers that are not finite"
            )
        model.save(self.files.output)
        if self.files.plot is not None:
            self.history.plot(self.files.plot)

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts, lists and numbers."""
        rows = self.history.to_json()
        names = ("loss", "accuracy", "validation_loss", "validation_accuracy")
        return {
            "model": self.model,
            "backend": self.backend.name,
            "device": self.device,
            "choice": self.choice.to_json() if self.choice else None,
            "samples": self.samples[0],
            "validation_samples": self.samples[1],
            "epochs": len(rows),
            "steps": rows[-1]["step"],
            **{name: rows[-1][name] for name in names},
            "seconds": self.seconds,
            "classes": list(self.classes) or None,
            "output": self.files.output,
            "checkpoint": self.files.checkpoint,
            "plot": self.files.plot,
            "history": rows,
        }

    def show(self, out: Screen) -> None:
        """Print a row for each epoch, and what was written."""
        rows = self.history.to_json()
        ranks = {"loss": 0, "accuracy": 0, "validation_loss": 1, "validation_accuracy": 0}
        named = [n for n in ranks if any(row[n] is not None for row in rows)]
        shown = [figures(n.replace("_", " "), ranks[n]) for n in named]
        more = (figures("step", 3), *shown, figures("learning rate", 4), figures("s", 2))
        table = Table((figures("epoch"), *more))
        for row in rows[-SHOWN:]:
            cells = [_percent(row[n]) if "accuracy" in n else number(row[n]) for n in named]
            rate, seconds = number(row["learning_rate"]), number(row["seconds"])
            table.add(str(row["epoch"]), str(row["step"]), *cells, rate, seconds)
        if len(rows) > SHOWN:
            out.say(f"{len(rows) - SHOWN} epochs ... (all of them with --json)")
        out.show(table)
        held = f", {self.samples[1]} held out" if self.samples[1] else ""
        out.say(f"{self.samples[0]} samples{held} on {self.backend.name}: {self.device}")
        if self.choice is not None:
            out.say(f"auto takes {self.choice}")
        if self.classes:
            listed = ", ".join(name or "-" for name in self.classes[:SHOWN])
            others = len(self.classes) - SHOWN
            out.say(f"classes: {listed}{f' and {others} more' if others > 0 else ''}")
        for what in ("output", "checkpoint", "plot"):
            if path := getattr(self.files, what):
                out.say(f"{what}: {path}")


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.2f}%"
