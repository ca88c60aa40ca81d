"""Checkpoints: all that training needs to continue bit for bit, in one .npz file.

The file has `about`, a text of JSON, and arrays: `state/NAME` for each state (parameters, slots of
the optimiser, counts), `callback/NUMBER/NAME` for the states of callbacks. It is written
atomically, and reading it never unpickles.
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
"""Version of the file's format."""
MOST_ABOUT = 64 << 20  # bytes of `about`, four for each letter
STATE, CALLBACK, ABOUT = "state/", "callback/", "about"


@dataclass(frozen=True)
class Position:
    """The position of training within its epochs."""

    epoch: int = 0
    """The number of finished epochs."""
    sample: int = 0
    """Samples of the current epoch that were trained on."""
    began: int = 0
    """Epochs that were finished when `fit` began."""
    seconds: float = 0.0
    """The time that the current epoch took so far."""


@dataclass(frozen=True)
class EpochBatches:
    """The division of an epoch into batches; an epoch can only be resumed with the same."""

    count: int = 0
    """Samples of an epoch; 0 outside `fit`."""
    batch_size: int = 0
    """Samples of an update."""
    accumulate: int = 1
    """Parts of a batch whose gradients are accumulated."""
    shuffle: bool = True
    """Whether the samples of each epoch are shuffled."""


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
    position: Position
    """The position of the training."""
    batches: EpochBatches
    """The division of its epochs into batches."""
    setup: Setup
    """The arguments and the backend of the training."""
    kernels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The kernel of each step, by the plan's name, as `training 64`."""
    history: History = field(default_factory=History)
    """The finished epochs."""
    callbacks: tuple[Mapping[str, Array], ...] = ()
    """The state of each callback."""


def write(path: str | os.PathLike[str], snapshot: Snapshot) -> None:
    """Write `snapshot` to `path`. Raises ModelError where it cannot be written."""
    about = {
        "format": FORMAT,
        "place": asdict(snapshot.position),
        "batches": asdict(snapshot.batches),
        "setup": asdict(snapshot.setup),
        "kernels": {name: list(names) for name, names in snapshot.kernels.items()},
        "history": snapshot.history.to_json(),
        "callbacks": len(snapshot.callbacks),
    }
    arrays = {ABOUT: np.array(json.dumps(about))}
    arrays |= {STATE + name: array for name, array in snapshot.states.items()}
    for number, state in enumerate(snapshot.callbacks):
        arrays |= {f"{CALLBACK}{number}/{name}": array for name, array in state.items()}
    try:
        with atomic_write(path) as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]  # its other argument is a bool
            stream.flush()
            os.fsync(stream.fileno())  # before it replaces the old file
    except (OSError, ValueError) as error:  # a full disk, a name with a zero byte
        raise ModelError(f"{os.fspath(path)}: cannot be written: {fault(error)}") from None


def read(path: str | os.PathLike[str]) -> Snapshot:
    """Read a checkpoint that `write` wrote. Raises ModelError for any other file."""
    file = Path(path)
    with open_npz(file) as archive:
        if ABOUT not in archive.names or archive.header(ABOUT).nbytes > MOST_ABOUT:
            raise ModelError(f"{file}: is no checkpoint of glnn's")
        about = _parse(file, archive.read(ABOUT))
        arrays = {name: archive.read(name) for name in archive.names if name != ABOUT}
    callbacks = [_with_prefix(arrays, f"{CALLBACK}{i}/") for i in range(about["callbacks"])]
    try:
        return Snapshot(
            _with_prefix(arrays, STATE),
            _dataclass_of(Position, about["place"]),
            _dataclass_of(EpochBatches, about["batches"]),
            _dataclass_of(Setup, about["setup"]),
            {name: tuple(names) for name, names in about["kernels"].items()},
            History.from_json(about["history"]),
            tuple(callbacks),
        )
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None


def _with_prefix(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """Return the arrays whose names begin with `prefix`, by their names without it."""
    return {n.removeprefix(prefix): array for n, array in arrays.items() if n.startswith(prefix)}


def _parse(file: Path, text: Array) -> dict[str, Any]:
    """Return the parsed `about`. Raises ModelError unless its entries are complete and valid."""
    kinds = {"place": dict, "batches": dict, "setup": dict, "history": list, "callbacks": int}
    try:
        about = json.loads(str(text)) if text.dtype.kind == "U" and text.shape == () else None
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or "format" not in about:
        raise ModelError(f"{file}: is no checkpoint of glnn's")
    if about["format"] != FORMAT:
        got = shown(about["format"])
        raise ModelError(f"{file}: expected a checkpoint of format {FORMAT}, got {got}")
    is_typed = all(type(about.get(name)) is kind for name, kind in kinds.items())
    if not is_typed or not 0 <= about["callbacks"] <= 1000 or not _is_kernels(about.get("kernels")):
        raise ModelError(f"{file}: what it says about itself is damaged")
    return about


def _is_kernels(kernels: object) -> bool:
    return isinstance(kernels, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in kernels.values()
    )


def _dataclass_of(kind: Any, document: Mapping[str, Any]) -> Any:
    """Return the dataclass `kind` made of `document`.

    Raises ModelError unless that has exactly its fields, of their types, and no negative number.
    """
    types = {"int": int, "float": float, "str": str, "bool": bool}
    field_types = {field.name: types[str(field.type)] for field in fields(kind)}
    is_valid = document.keys() == field_types.keys() and all(
        type(document[name]) is type_ and (type_ in (str, bool) or 0 <= document[name] < inf)
        for name, type_ in field_types.items()
    )
    if not is_valid:
        names = ", ".join(field_types)
        raise ModelError(f"its {kind.__name__.lower()} must have {names}, got {shown(document)}")
    return kind(**document)


def differences(
    expected: Mapping[str, Array], actual: Mapping[str, Array], most: int = 3
) -> list[str]:
    """Describe how names, shapes and dtypes of the arrays `actual` differ from those `expected`.

    most: differences that are described; the others are counted.
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
    """Raise ModelError where the training of the checkpoint `name` cannot continue with the setup
    `now`; log a warning where it can, but the setup differs.

    then: the setup in the checkpoint.
    """
    optimizers = [setup.optimizer.partition("(")[0] for setup in (then, now)]
    if optimizers[0] != optimizers[1]:
        raise ModelError(f"{name}: was trained by {optimizers[0]}, got {optimizers[1]}")
    if then.seed != now.seed:
        raise ModelError(f"{name}: was trained with seed {then.seed}, got {now.seed}")
    for what in ("loss", "optimizer", "schedule", "options", "backend"):
        if (before := getattr(then, what)) != (after := getattr(now, what)):
            LOG.warning("%s: was trained with %s %s, goes on with %s", name, what, before, after)
