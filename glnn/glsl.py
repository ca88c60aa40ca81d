"""GLSL's files: where they lie, and their text with what they include put in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path

from glnn.errors import GlnnError, ShaderError

DOCUMENTS = "documents"
"""The folder of what only a document has, beside those of the operators."""
_INCLUDE = re.compile(r'\s*#include\s+"([^"]+)"\s*$')
_GENERATED = re.compile(r"\s*#include\s+<([^>]+)>\s*$")
Line = tuple[str, str, int]
"""A line's text, the file that it comes from, and its number there."""


@cache
def shaders_folder() -> Path:
    """Where the shaders lie: inside the installed package, or beside it in the repository."""
    package = Path(__file__).resolve().parent
    for folder in (package / "shaders", package.parent / "shaders"):
        if (folder / "common").is_dir():
            return folder
    raise GlnnError(f"the shaders are missing from this installation of glnn ({package})")


def folder_of(path: Path) -> Path:
    """The shaders folder that the file at `path` is of: files are included from there."""
    folder = path.parents[1]
    return folder.parent if folder.name == DOCUMENTS else folder


@cache
def expanded(path: Path) -> str:
    """The text of a file of the shaders folder's folders, its includes put in."""
    return "\n".join(line for line, _, _ in lines(path, path.name))


def lines(path: Path, name: str, generated: Mapping[str, str] | None = None) -> list[Line]:
    """The lines of the file at `path`, called `name`: no `#version`, each include put in once.

    generated: what stands for the lines `#include <name>`, by name; includes in it are put in, too.
    None leaves these lines as they are. Files are looked for and read once (see `anew`). Raises
    ShaderError on a file that cannot be read, and on an include that is missing or leaves the
    shaders folder.
    """
    return included(_text(path), name, folder_of(path), set(), generated)


def included(
    text: str, name: str, folder: Path, seen: set[Path], generated: Mapping[str, str] | None = None
) -> list[Line]:
    """The same of a text that includes files of `folder`, or else of glnn's own shaders.

    seen: those that it has by now.
    """
    found: list[Line] = []
    for number, plain, file, part in _parts(text, name):
        if file is not None:
            target = _target(file, folder)
            if target is None:
                _target.cache_clear()  # it may be there when it is looked for again
                raise ShaderError(f"{name}:{number}: no shader file {file!r} to include")
            if target not in seen:
                seen.add(target)
                found += included(_text(target), file, folder, seen, generated)
        elif part is not None and generated is not None:
            if part not in generated:
                raise ShaderError(f"{name}:{number}: nothing is generated for <{part}>")
            found += included(generated[part], f"({part})", folder, seen, generated)
        else:
            found += plain
    return found


_Part = tuple[int, tuple[Line, ...], str | None, str | None]
"""Lines of a text, the number of the first, and what is included in the place of one: a file, or
what is generated under a name."""


@lru_cache(maxsize=1024)
def _parts(text: str, name: str) -> tuple[_Part, ...]:
    """The text called `name`, divided where something is included; no `#version`."""
    found: list[_Part] = []
    plain: list[Line] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#version"):
            continue
        one: Line = (line, name, number)
        file, part = _INCLUDE.match(line), _GENERATED.match(line)
        if file is None and part is None:
            plain.append(one)
            continue
        found += [(number, tuple(plain), None, None)] if plain else []
        found.append((number, (one,), file and file[1], part and part[1]))
        plain = []
    found += [(0, tuple(plain), None, None)] if plain else []
    return tuple(found)


@cache
def _target(name: str, folder: Path) -> Path | None:
    """The file so called in `folder`, or else among glnn's own; None where neither has it."""
    for root in (folder.resolve(), shaders_folder()):
        target = (root / name).resolve()
        if target.is_relative_to(root) and target.is_file():
            return target
    return None


@contextmanager
def anew() -> Iterator[None]:
    """Have all files read again, within and afterwards; not where it ends by an exception."""
    texts = _texts()
    former = dict(texts)
    texts.clear()
    _forget()
    try:
        yield
    except BaseException:
        texts.clear()
        texts.update(former)
        _forget()
        raise


def _forget() -> None:
    """Drop what was made of texts that may be others now."""
    expanded.cache_clear()
    _target.cache_clear()


@cache
def _texts() -> dict[Path, str]:
    """What was read, by the file."""
    return {}


def _text(path: Path) -> str:
    found = _texts().get(path)
    if found is None:
        found = _texts()[path] = _read(path)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ShaderError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ShaderError(f"{path}: expected UTF-8, got {error}") from None
