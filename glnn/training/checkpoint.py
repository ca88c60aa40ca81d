"""Checkpoints: all that training needs to go on bit for bit, in one .npz file.

The file has `about`, a text of JSON, and arrays: `state/NAME` for each state (parameters, slots of
the optimiser, counts), `callback/NUMBER/NAME` for what callbacks keep. It is there whole or not at
all, and reading it never unpickles.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from glnn.core.fileio import atomic_write
from glnn.core.types import Array
from glnn.errors import ModelError, fault, shown
from glnn.model.npz import open_npz
from glnn.training.history import History

LOG = logging.getLogger(__name__)
FORMAT = 1
"""Counts the formats of the file."""
MOST_ABOUT = 64 << 20  # bytes of `about`: four a letter
STATE, CALLBACK, ABOUT = "state/", "callback/", "about"


@dataclass(frozen=True)
class Position:
    """The position of training within its epochs."""

    epoch: int = 0
    """Epochs that are over."""
    sample: int = 0
    """Samples of the next one that were trained on."""
    began: int = 0
    """Epochs that were over when `fit` began."""
    seconds: float = 0.0
    """The time that the epoch took so far."""


@dataclass(frozen=True)
class EpochBatches:
    """The division of an epoch into batches; an epoch can only be resumed with the same."""

    count: int = 0
    """Samples of an epoch; 0 outside `fit`."""
    batch_size: int = 0
    """Samples of an update."""
    accumulate: int = 1
    """Parts of a batch whose gradients add up."""
    shuffle: bool = True
    """Whether an epoch has an order of its own."""


@dataclass(frozen=True)
class Setup:
    """The arguments and the backend of a training, which are compared with a checkpoint's."""

    model: str
    """The model's name."""
    loss: str
    """The loss with its arguments."""
    optimizer: str
    """The optimiser with its arguments."""
    schedule: str
    """The schedule of the learning rate; empty without one."""
    options: str
    """The frozen parameters, and the bounds of gradients."""
    seed: int
    """The seed of dropout and of the order of samples."""
    version: str
    """The version of glnn."""
    backend: str
    """The backend's name."""
    device: str
    """The GPU and its driver; empty for the CPU."""


@dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint."""

    states: Mapping[str, Array]
    """The content of each state."""
    place: Position
    """The position of the training."""
    batches: EpochBatches
    """The division of its epochs into batches."""
    setup: Setup
    """The arguments and the backend of the training."""
    kernels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The kernel of each step, by what the steps compute, as `training 64`."""
    history: History = field(default_factory=History)
    """The epochs that are over."""
    callbacks: tuple[Mapping[str, Array], ...] = ()
    """The arrays that each callback keeps."""


def write(path: str | os.PathLike[str], snapshot: Snapshot) -> None:
    """Write `snapshot` to `path`. Raises ModelError where that cannot be written."""
    about = {
        "format": FORMAT,
        "place": asdict(snapshot.place),
        "batches": asdict(snapshot.batches),
        "setup": asdict(snapshot.setup),
        "kernels": {name: list(names) for name, names in snapshot.kernels.items()},
        "history": snapshot.history.to_json(),
        "callbacks": len(snapshot.callbacks),
    }
    arrays = {ABOUT: np.array(json.dumps(about))}
    arrays |= {STATE + name: array for name, array in snapshot.states.items()}
    for number, kept in enumerate(snapshot.callbacks):
        arrays |= {f"{CALLBACK}{number}/{name}": array for name, array in kept.items()}
    try:
        with atomic_write(path) as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]  # its other one is a bool
            stream.flush()
            os.fsync(stream.fileno())  # before the old one is replaced
    except (OSError, ValueError) as error:  # a full disk, a name that holds a zero byte
        raise ModelError(f"{os.fspath(path)}: cannot be written: {fault(error)}") from None


def read(path: str | os.PathLike[str]) -> Snapshot:
    """Read a checkpoint that `write` wrote. Raises ModelError for any other file."""
    file = Path(path)
    with open_npz(file) as archive:
        if ABOUT not in archive.names or archive.header(ABOUT).nbytes > MOST_ABOUT:
            raise ModelError(f"{file}: is no checkpoint of glnn's")
        about = _parse(file, archive.read(ABOUT))
        arrays = {name: archive.read(name) for name in archive.names if name != ABOUT}
    states = {name[len(STATE) :]: array for name, array in arrays.items() if _is(name, STATE)}
    callbacks = []
    for number in range(about["callbacks"]):
        begin = f"{CALLBACK}{number}/"
        kept = {name[len(begin) :]: array for name, array in arrays.items() if _is(name, begin)}
        callbacks.append(kept)
    try:
        return Snapshot(
            states,
            _dataclass_of(Position, about["place"]),
            _dataclass_of(EpochBatches, about["batches"]),
            _dataclass_of(Setup, about["setup"]),
            {name: tuple(names) for name, names in about["kernels"].items()},
            History.from_json(about["history"]),
            tuple(callbacks),
        )
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None


def _is(name: str, begin: str) -> bool:
    return name.startswith(begin)


def _parse(file: Path, text: Array) -> dict[str, Any]:
    """Return the parsed `about`, whose entries are complete and of the right types."""
    kinds = {"place": dict, "batches": dict, "setup": dict, "history": list, "callbacks": int}
    try:
        about = json.loads(str(text)) if text.dtype.kind == "U" and text.shape == () else None
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or "format" not in about:
        raise ModelError(f"{file}: is no checkpoint of glnn's")
    if about["format"] != FORMAT:
        wrong = shown(about["format"])
        raise ModelError(f"{file}: expected a checkpoint of format {FORMAT}, got {wrong}")
    right = all(type(about.get(name)) is kind for name, kind in kinds.items())
    if not right or not 0 <= about["callbacks"] <= 1000 or not _is_kernels(about.get("kernels")):
        raise ModelError(f"{file}: what it says about itself is damaged")
    return about


def _is_kernels(kernels: object) -> bool:
    return isinstance(kernels, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in kernels.values()
    )


def _dataclass_of(kind: Any, document: Mapping[str, Any]) -> Any:
    """Make the dataclass `kind` of `document`. Raises ModelError where it lacks a field."""
    types = {"int": int, "float": float, "str": str, "bool": bool}
    wanted = {one.name: types[str(one.type)] for one in fields(kind)}
    right = document.keys() == wanted.keys() and all(
        type(document[name]) is type_ and (type_ in (str, bool) or 0 <= document[name] < inf)
        for name, type_ in wanted.items()
    )
    if not right:
        named = ", ".join(wanted)
        raise ModelError(f"its {kind.__name__.lower()} must have {named}, got {shown(document)}")
    return kind(**document)


def differences(
    expected: Mapping[str, Array], actual: Mapping[str, Array], most: int = 3
) -> list[str]:
    """Describe where the arrays `actual` have other names, shapes or dtypes than those `expected`.

    most: how many differences are described.
    """
    faults = [f"{name!r} is missing" for name in expected if name not in actual]
    faults += [f"{name!r} is unknown" for name in actual if name not in expected]
    for name, array in actual.items():
        other = expected.get(name)
        if other is not None and (other.shape, other.dtype) != (array.shape, array.dtype):
            wanted = f"{other.dtype} {other.shape}"
            faults.append(f"{name!r} is {array.dtype} {array.shape}, not {wanted}")
    more = [f"and {len(faults) - most} more"] if len(faults) > most else []
    return faults[:most] + more


def check_setup(name: str, then: Setup, now: Setup) -> None:
    """Raise ModelError where training in the checkpoint `name` cannot go on so.

    Warns where it can, but with something else.
    """
    kinds = [one.optimizer.partition("(")[0] for one in (then, now)]
    if kinds[0] != kinds[1]:
        raise ModelError(f"{name}: was trained by {kinds[0]}, got {kinds[1]}")
    if then.seed != now.seed:
        raise ModelError(f"{name}: was trained with seed {then.seed}, got {now.seed}")
    for what in ("loss", "optimizer", "schedule", "options", "backend"):
        if (before := getattr(then, what)) != (after := getattr(now, what)):
            LOG.warning("%s: was trained with %s %s, goes on with %s", name, what, before, after)
