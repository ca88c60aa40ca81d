"""Writing a model's two files so that a single rename decides which model is there."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from glnn import fileio
from glnn.errors import ModelError, fault
from glnn.fileio import open_regular
from glnn.model.files import MOST_JSON

if sys.platform != "win32":
    from fcntl import LOCK_EX, LOCK_NB, flock

NO_MODEL = {errno.ENOENT, errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.EFBIG}
"""Errors of reading a path that has no file, or one too large to be loaded."""


def write_model(
    target: Path, arrays: Mapping[str, NDArray[Any]], text: Callable[[str | None], bytes]
) -> None:
    """Write the .json file `target` and, where there are `arrays`, an .npz file beside it.

    text: the .json file's content, from the .npz file's name, None where there is none.

    The .npz file gets a name that no other has, so what is there stays as it is until `target` is
    replaced. Killed at any point, the old model or the new one is there, whole; what else is left
    of this model, the old weights too, goes now or with the next save. Only .json files of the same
    folder, and what is called as `target` and more (net.json.bak), keep the old weights alive.
    Raises ModelError where something cannot be written.
    """
    if target.is_dir():
        raise ModelError(f"{target}: cannot be written: it is a folder")
    former = _former_weights(target)
    try:
        with ExitStack() as files:
            name = None
            if arrays:
                name = f"{target.stem}.weights-{secrets.token_hex(8)}.npz"
                stream = files.enter_context(_create(target.with_name(name)))
                np.savez(stream, **arrays)  # type: ignore[arg-type]  # its other one is a bool
                _settle(stream)
            draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
            stream = files.enter_context(_create(draft))
            stream.write(text(name))
            _settle(stream)
            _settle_folder(target.parent)  # the weights are there before anything names them
            if sys.platform == "win32":
                stream.close()  # an open file cannot be renamed there
            draft.replace(target)
            _settle_folder(target.parent)  # and the old ones until nothing does
    except (OSError, ValueError) as error:  # a name that holds a zero byte, a full disk
        raise ModelError(f"{target}: cannot be written: {fault(error)}") from None
    finally:
        _sweep(target, former)


@contextmanager
def _create(path: Path) -> Iterator[IO[bytes]]:
    """A new file, locked while it is open: it is in use, whether or not anything names it."""
    while True:
        with path.open("xb") as stream:
            with suppress(OSError):  # some file systems lock nothing
                _lock(stream, wait=True)
            if os.fstat(stream.fileno()).st_nlink:
                yield stream
                return
        # Another save swept it away before it was locked.


def _lock(stream: IO[bytes], wait: bool = False) -> None:
    """Lock the file, which ends with the process at the latest. OSError where another has it.

    wait: until that one, a save that is sweeping, has let go of it.
    """
    if sys.platform != "win32":
        flock(stream, LOCK_EX | (0 if wait else LOCK_NB))


@contextmanager
def _lock_unused(path: Path) -> Iterator[None]:
    """Lock the file. Raises OSError where somebody is writing it."""
    if sys.platform == "win32":  # where a file that is open cannot be removed, by us either
        yield
    else:
        with open(path, "r+b", opener=open_regular) as stream:
            _lock(stream)
            yield


def _settle(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _settle_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems and systems cannot
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _former_weights(target: Path) -> str | None:
    """The .npz file of the model at `target`, where an older glnn named it after the .json file."""
    with suppress(OSError, ValueError, RecursionError):
        document = json.loads(fileio.read_bytes(target, MOST_JSON))
        name = target.with_suffix(".npz").name
        if isinstance(document, dict) and document.get("weights") == name:
            return name
    return None


def _sweep(target: Path, former: str | None) -> None:
    """Remove what saves of `target` left behind: what no copy in the folder names and nobody is
    writing. former: the old model's weights, of an older glnn's name.
    """
    stem = re.escape(target.stem)
    ours = re.compile(rf"{stem}\.weights-[0-9a-f]{{16}}\.npz|\.{stem}\.(json|npz)\.[0-9a-f]{{8}}")
    with suppress(OSError):
        for path in list(target.parent.iterdir()):
            if (ours.fullmatch(path.name) or path.name == former) and not path.is_symlink():
                # In this order: who wrote it names it before letting go of the lock.
                with suppress(OSError), _lock_unused(path):
                    if not _is_named(path, target.name):
                        path.unlink()


def _is_named(path: Path, model: str) -> bool:
    """Return True where a copy of a model beside `path` mentions it, or cannot be read.

    Those are the folder's .json files and what is called as `model` and more, as net.json.bak is.
    A copy elsewhere, or called otherwise, keeps no weights alive.
    """
    names = path.name.encode("utf-8", "surrogateescape"), json.dumps(path.name)[1:-1].encode()
    for other in path.parent.iterdir():
        if not other.name.endswith(".json") and not other.name.startswith(model):
            continue
        try:
            content = fileio.read_bytes(other, MOST_JSON)
        except OSError as error:
            if error.errno in NO_MODEL:
                continue
            return True  # who knows
        if any(name in content for name in names):
            return True
    return False
