"""The library of all kernels, from the shaders folder and the user's folder, read once."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path

from glnn.core import fileio, glsl
from glnn.core.cached_property import cached_property
from glnn.core.glsl import DOCUMENTS, shaders_folder
from glnn.core.settings import Settings
from glnn.errors import GlnnError, ShaderError
from glnn.kernels.kernel import BACKENDS, Kernel, declared_at
from glnn.kernels.manifest import DeclarationError, by_op, variants
from glnn.kernels.source import known_fingerprint
from glnn.version import VERSION

Read = Callable[[Path], tuple[Kernel, ...]]


def parsed(folder: Path, read: Read) -> tuple[Kernel, ...]:
    """Return `read(folder)`, from the cache where it is valid. Raises as `read` does."""
    try:
        state = _state(folder)
        path = Path(importlib.util.cache_from_source(__file__))
    except (OSError, NotImplementedError):  # no such folder, or Python caches no code
        return read(folder)
    path = path.with_suffix(".pickle")
    with suppress(Exception):  # a missing or damaged cache is written again
        cached = path.read_bytes()
        if cached.startswith(state):
            result: tuple[Kernel, ...] = pickle.loads(cached[len(state) :])
            return result
    kernels = read(folder)
    if not sys.dont_write_bytecode:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with fileio.atomic_write(path) as file:
                file.write(state + pickle.dumps(kernels))
    return kernels


def _state(folder: Path) -> bytes:
    """Return a digest of the files in `folder` and of the modules that read them."""
    hashed = sha256(repr((VERSION, sys.version, str(folder))).encode())
    for path in (folder, Path(__file__).parent):
        for entry in _files(path):
            stat = entry.stat()
            hashed.update(f"{entry.path}\0{stat.st_size} {stat.st_mtime_ns}\0".encode())
    return hashed.digest()


def _files(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """Yield the files in `folder` and its subfolders, in order."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if not entry.is_dir():
                yield entry
            elif entry.name != "__pycache__":
                yield from _files(entry.path)


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(folder: Path) -> tuple[Kernel, ...]:
    """Read the kernels declared in `folder` and, after those, in its documents' folder.

    Sorted by op, file and place in the file within each folder. Raises ShaderError where a shader
    has no declaration, a declaration no shader, or two kernels of an op have the same name.
    """
    kernels: dict[tuple[str, str], Kernel] = {}
    for part in (folder, folder / DOCUMENTS):
        part_kernels = [
            kernel for path in sorted(part.glob("*/*.toml")) for kernel in _kernels(path)
        ]
        for kernel in sorted(part_kernels, key=lambda k: k.op):
            other = kernels.setdefault((kernel.op, kernel.name), kernel)
            if other is not kernel:
                location, other_location = (
                    declared_at(k.declaration, k.name) for k in (kernel, other)
                )
                raise ShaderError(f"{location}: its name is that of {other_location}, too")
        declared = {kernel.path for kernel in kernels.values()}
        for suffix in BACKENDS:
            for shader in part.glob(f"*/*{suffix}"):
                if shader not in declared:
                    raise ShaderError(f"{shader}: it has no declaration (.toml) beside it")
    return tuple(kernels.values())


def _kernels(declaration: Path) -> Iterator[Kernel]:
    """Yield the kernels of one declaration. Raises ShaderError."""
    folder_op = declaration.parent.name
    try:
        declared = variants(tomllib.loads(declaration.read_text("utf-8")), declaration.stem)
        texts = [
            (n, op, one) for n in declared for op, one in by_op(declared[n], folder_op).items()
        ]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, DeclarationError) as error:
        raise ShaderError(f"{declaration}: {error}") from None
    except OSError as error:
        raise ShaderError(f"{declaration}: cannot be read: {error.strerror}") from None
    shaders = [path for path in map(declaration.with_suffix, BACKENDS) if path.exists()]
    for name, op, text in texts:
        if len(shaders) != 1 and "stages" not in text:
            raise ShaderError(f"{declaration}: expected one shader beside it, found {len(shaders)}")
        path = declaration if "stages" in text else shaders[0]
        yield Kernel.declared(declaration, path, text, name, op)


def of_user(folder: Path, shipped: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Read the kernels in the user's `folder`, which extend those `shipped` with glnn.

    Raises GlnnError where there is no such folder, and ShaderError as `read` does, for an op
    without shipped kernels, and for the name of a shipped kernel.
    """
    is_folder = os.path.isdir(folder)
    if not is_folder or folder.name == DOCUMENTS:
        called = f", not called {DOCUMENTS}" if is_folder else ""
        raise GlnnError(f"GLNN_KERNELS: expected a folder{called}, got {folder}")
    for path in sorted(folder.glob("*.toml")):
        raise ShaderError(f"{path}: expected it in a folder of the op's name")
    shipped_by_name = {(kernel.op, kernel.name): kernel for kernel in shipped}
    ops = sorted({kernel.op for kernel in shipped})
    result = tuple(replace(kernel, folder=folder) for kernel in read(folder))
    for kernel in result:
        location = declared_at(kernel.declaration, kernel.name)
        if kernel.op not in ops:
            raise ShaderError(f"{location}: no op {kernel.op!r}, expected one of {', '.join(ops)}")
        if other := shipped_by_name.get((kernel.op, kernel.name)):
            other_location = declared_at(other.declaration, other.name)
            raise ShaderError(f"{location}: its name is that of {other_location}, too")
    return result


@dataclass(frozen=True)
class Library:
    """An immutable set of kernels as read from files. revision: number of reloads with changes."""

    kernels: tuple[Kernel, ...]
    revision: int = 0

    @classmethod
    def read(cls, *, cached: bool = True) -> Library:
        """Read the kernels that ship with glnn and those of `GLNN_KERNELS`. Raises as `of_user`.

        cached: False to parse all files, ignoring the cache that an earlier process left.
        """
        shipped = parsed(shaders_folder(), read) if cached else read(shaders_folder())
        folder = Settings.from_environment().kernels
        if folder is None:
            return cls(shipped)
        return cls(shipped + of_user(Path(os.path.realpath(folder)), shipped))

    @cached_property
    def by_op(self) -> Mapping[tuple[str, str], tuple[Kernel, ...]]:
        """The kernels for each op and backend, by descending priority."""
        kernels_of: dict[tuple[str, str], list[Kernel]] = {}
        for kernel in sorted(self.kernels, key=lambda k: -k.priority):
            kernels_of.setdefault((kernel.op, kernel.backend), []).append(kernel)
        return {key: tuple(kernels) for key, kernels in kernels_of.items()}

    def reread(self) -> Library:
        """Read all files again: return self where nothing changed, else a new library.

        Unchanged kernels are the same objects. A changed kernel has another edition, so that
        nothing cached for the former one is used.
        """
        known = {(one.op, one.name): (one, known_fingerprint(one)) for one in self.kernels}
        revision, kernels = self.revision + 1, []
        with glsl.reread_files():
            for kernel in self.read(cached=False).kernels:
                old, printed = known.get((kernel.op, kernel.name), (None, None))
                new = replace(kernel, edition=revision)
                if old and replace(kernel, edition=old.edition) == old:
                    new = old if known_fingerprint(kernel) == printed is not None else new
                kernels.append(new)
        return self if tuple(kernels) == self.kernels else Library(tuple(kernels), revision)


@dataclass
class _Shelf:
    """Holder of the latest library, which is read on first use."""

    latest: Library | None = None

    @property
    def library(self) -> Library:
        if self.latest is None:
            self.latest = Library.read()
        return self.latest


@cache
def _shelf() -> _Shelf:
    return _Shelf()


def reload() -> tuple[Kernel, ...]:
    """Read all declarations, shaders and `GLNN_KERNELS` again; return the kernels new or changed.

    Where none were read before, returns the user's kernels. Backends then choose among the new
    kernels, and sessions plan again. Raises ShaderError or GlnnError where a file is wrong, and
    leaves the library unchanged then.
    """
    shelf = _shelf()
    if shelf.latest is None:
        return tuple(kernel for kernel in shelf.library.kernels if kernel.folder)
    known = set(shelf.library.kernels)
    shelf.latest = shelf.library.reread()
    return tuple(kernel for kernel in shelf.library.kernels if kernel not in known)


def revision() -> int:
    """Return the library's revision, which cached choices of kernels are valid for."""
    latest = _shelf().latest
    return 0 if latest is None else latest.revision


def declared() -> tuple[Kernel, ...]:
    """Return all kernels, those of stages among them."""
    return _shelf().library.kernels


def library() -> tuple[Kernel, ...]:
    """Return the kernels that are shaders."""
    return tuple(kernel for kernel in declared() if not kernel.stages)


def kernels_for(op: str, backend: str) -> tuple[Kernel, ...]:
    """Return the kernels of `backend` for the op named `op`, by descending priority."""
    return _shelf().library.by_op.get((op, backend), ())
