"""Every kernel there is: those of the shaders folder and of the user's, read once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from glnn import glsl
from glnn.errors import GlnnError, ShaderError
from glnn.glsl import DOCUMENTS, shaders_folder
from glnn.kernels.declaration import by_op, variants
from glnn.kernels.forms import DeclarationError
from glnn.kernels.kernel import BACKENDS, Kernel, place
from glnn.kernels.parsed import parsed
from glnn.kernels.source import known_fingerprint
from glnn.settings import Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(folder: Path) -> tuple[Kernel, ...]:
    """The kernels declared in `folder` and, after those, in its folder of documents' kernels.

    Of each by op and name. Raises ShaderError where a shader has no declaration, a declaration no
    shader, or a name stands for two kernels.
    """
    kernels: dict[tuple[str, str], Kernel] = {}
    for part in (folder, folder / DOCUMENTS):
        found = [kernel for path in sorted(part.glob("*/*.toml")) for kernel in _kernels(path)]
        for kernel in sorted(found, key=lambda k: (k.op, k.name)):
            other = kernels.setdefault((kernel.op, kernel.name), kernel)
            if other is not kernel:
                where, there = (place(k.declaration, k.name) for k in (kernel, other))
                raise ShaderError(f"{where}: its name is that of {there}, too")
        declared = {kernel.path for kernel in kernels.values()}
        for suffix in BACKENDS:
            for shader in part.glob(f"*/*{suffix}"):
                if shader not in declared:
                    raise ShaderError(f"{shader}: it has no declaration (.toml) beside it")
    return tuple(kernels.values())


def _kernels(declaration: Path) -> Iterator[Kernel]:
    """The kernels of a declaration. Raises ShaderError."""
    own = declaration.parent.name
    try:
        found = variants(tomllib.loads(declaration.read_text("utf-8")), declaration.stem)
        texts = [(n, op, one) for n in found for op, one in by_op(found[n], own).items()]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, DeclarationError) as error:
        raise ShaderError(f"{declaration}: {error}") from None
    except OSError as error:
        raise ShaderError(f"{declaration}: cannot be read: {error.strerror}") from None
    beside = [path for path in map(declaration.with_suffix, BACKENDS) if path.exists()]
    for name, op, text in texts:
        if len(beside) != 1 and "stages" not in text:
            raise ShaderError(f"{declaration}: expected one shader beside it, found {len(beside)}")
        path = declaration if "stages" in text else beside[0]
        yield Kernel.declared(declaration, path, text, name, op)


def of_user(folder: Path, shipped: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """The kernels in the user's `folder`, beside those that are `shipped`.

    Raises GlnnError where there is no such folder; ShaderError as `read` does, for an op without
    shipped kernels, and for a name that one of these has.
    """
    is_folder = os.path.isdir(folder)  # False of whatever cannot be looked at
    if not is_folder or folder.name == DOCUMENTS:
        called = f", not called {DOCUMENTS}" if is_folder else ""
        raise GlnnError(f"GLNN_KERNELS: expected a folder{called}, got {folder}")
    for path in sorted(folder.glob("*.toml")):
        raise ShaderError(f"{path}: expected it in a folder of the op's name")
    taken = {(kernel.op, kernel.name): kernel for kernel in shipped}
    ops = sorted({kernel.op for kernel in shipped})
    found = tuple(replace(kernel, folder=folder) for kernel in read(folder))
    for kernel in found:
        where = place(kernel.declaration, kernel.name)
        if kernel.op not in ops:
            raise ShaderError(f"{where}: no op {kernel.op!r}, expected one of {', '.join(ops)}")
        if other := taken.get((kernel.op, kernel.name)):
            there = place(other.declaration, other.name)
            raise ShaderError(f"{where}: its name is that of {there}, too")
    return found


@dataclass(frozen=True)
class Library:
    """The kernels as they were read. revision: how often there were others by then."""

    kernels: tuple[Kernel, ...]
    revision: int = 0

    @classmethod
    def read(cls, *, anew: bool = False) -> Library:
        """Those that ship with glnn and those of `GLNN_KERNELS`. Raises what `of_user` does.

        anew: whether to believe nothing that an earlier process has left.
        """
        shipped = read(shaders_folder()) if anew else parsed(shaders_folder(), read)
        folder = Settings.from_environment().kernels
        if folder is None:
            return cls(shipped)
        return cls(shipped + of_user(Path(os.path.realpath(folder)), shipped))

    @cached_property
    def by_op(self) -> Mapping[tuple[str, str], tuple[Kernel, ...]]:
        """The kernels for each op and backend, the preferred ones first."""
        found: dict[tuple[str, str], list[Kernel]] = {}
        for kernel in sorted(self.kernels, key=lambda k: -k.priority):
            found.setdefault((kernel.op, kernel.backend), []).append(kernel)
        return {key: tuple(some) for key, some in found.items()}

    def again(self) -> Library:
        """What there is now: itself where nothing changed, and of others each kernel that did not.

        What changed is another edition, so that nothing that was found of the former is used.
        """
        known = {(one.op, one.name): (one, known_fingerprint(one)) for one in self.kernels}
        revision, kernels = self.revision + 1, []
        with glsl.anew():
            for kernel in self.read(anew=True).kernels:
                old, printed = known.get((kernel.op, kernel.name), (None, None))
                new = replace(kernel, edition=revision)
                if old and replace(kernel, edition=old.edition) == old:
                    new = old if known_fingerprint(kernel) == printed is not None else new
                kernels.append(new)
        return self if tuple(kernels) == self.kernels else Library(tuple(kernels), revision)


@dataclass
class _Shelf:
    """Where the library stands that was read last; None before anybody needs a kernel."""

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
    """Read all declarations and shaders again, and `GLNN_KERNELS`: the kernels new or changed.

    Where none were read before, these are the user's. Backends choose among what there is now, and
    sessions make their plans anew. Raises what is wrong with a file, and leaves everything as it
    was then.
    """
    shelf = _shelf()
    if shelf.latest is None:
        return tuple(kernel for kernel in shelf.library.kernels if kernel.folder)
    known = set(shelf.library.kernels)
    shelf.latest = shelf.library.again()
    return tuple(kernel for kernel in shelf.library.kernels if kernel not in known)


def revision() -> int:
    """How often there were other kernels by now: what is remembered of a choice is of one."""
    latest = _shelf().latest
    return 0 if latest is None else latest.revision


def declared() -> tuple[Kernel, ...]:
    """All kernels, those that are made of stages among them."""
    return _shelf().library.kernels


def library() -> tuple[Kernel, ...]:
    """The kernels that are shaders."""
    return tuple(kernel for kernel in declared() if not kernel.stages)


def kernels_for(op: str, backend: str) -> tuple[Kernel, ...]:
    """The kernels of `backend` for the op named `op`, the preferred ones first."""
    return _shelf().library.by_op.get((op, backend), ())
