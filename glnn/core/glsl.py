"""GLSL source files: their folder, and their text with includes expanded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path

from glnn.errors import GlnnError, ShaderError

DOCUMENTS = "documents"
"""The folder, next to those of the operators, of kernels that run only where they are named."""
_INCLUDE = re.compile(r'\s*#include\s+"([^"]+)"\s*$')
_GENERATED = re.compile(r"\s*#include\s+<([^>]+)>\s*$")
Line = tuple[str, str, int]
"""A line's text, the file that it comes from, and its number there."""


@cache
def shaders_folder() -> Path:
    """Return the folder of shaders, inside the installed package or next to it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "shaders", package.parent / "shaders"):
        if (folder / "common").is_dir():
            return folder
    raise GlnnError(f"the shaders are missing from this installation of glnn ({package})")


def folder_of(path: Path) -> Path:
    """Return the shaders folder to which the includes of the file at `path` are relative."""
    folder = path.parents[1]
    return folder.parent if folder.name == DOCUMENTS else folder


@cache
def expanded(path: Path) -> str:
    """Return the text of a shader file with its includes expanded."""
    return "\n".join(line for line, _, _ in lines(path, path.name))


def lines(path: Path, name: str, generated: Mapping[str, str] | None = None) -> list[Line]:
    """Return the lines of the file at `path`, each include expanded once, without `#version`.

    name: the file's name in the result. generated: the texts for the lines `#include <name>`, by
    name; includes in these are expanded, too. None leaves these lines unchanged. Files are located
    and read once (see `reread_files`). Raises ShaderError for a file that cannot be read, and for
    an include that is missing or outside the shaders folder.
    """
    return included(_text(path), name, folder_of(path), set(), generated)


def included(
    text: str, name: str, folder: Path, seen: set[Path], generated: Mapping[str, str] | None = None
) -> list[Line]:
    """Return the lines of a text with the included files of `folder`, or else of glnn's shaders.

    name, generated: as in `lines`. seen: the files included so far, which are not included again.
    """
    result: list[Line] = []
    for number, plain, file, part in _parts(text, name):
        if file is not None:
            target = _target(file, folder)
            if target is None:
                _target.cache_clear()  # the file may be created later
                raise ShaderError(f"{name}:{number}: no shader file {file!r} to include")
            if target not in seen:
                seen.add(target)
                result += included(_text(target), file, folder, seen, generated)
        elif part is not None and generated is not None:
            if part not in generated:
                raise ShaderError(
                    f"{name}:{number}: nothing is generated for <{part}>: expected the declaration"
                    f" to have `{part}`, or `generate` with a function that gives it"
                )
            result += included(generated[part], f"({part})", folder, seen, generated)
        else:
            result += plain
    return result


_Part = tuple[int, tuple[Line, ...], str | None, str | None]
"""The number of the first line, and lines without includes, a file to include, or the name of a
generated text to include."""


@lru_cache(maxsize=1024)
def _parts(text: str, name: str) -> tuple[_Part, ...]:
    """Divide the text called `name` at its includes; `#version` is dropped."""
    parts: list[_Part] = []
    plain: list[Line] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#version"):
            continue
        one: Line = (line, name, number)
        file, part = _INCLUDE.match(line), _GENERATED.match(line)
        if file is None and part is None:
            plain.append(one)
            continue
        parts += [(number, tuple(plain), None, None)] if plain else []
        parts.append((number, (one,), file and file[1], part and part[1]))
        plain = []
    parts += [(0, tuple(plain), None, None)] if plain else []
    return tuple(parts)


@cache
def _target(name: str, folder: Path) -> Path | None:
    """Return the file `name` in `folder`, or else in glnn's folder; None where neither has it."""
    for root in (folder.resolve(), shaders_folder()):
        target = (root / name).resolve()
        if target.is_relative_to(root) and target.is_file():
            return target
    return None


@contextmanager
def reread_files() -> Iterator[None]:
    """Read all files again from now on; restore the previous texts where the context raises."""
    texts = _texts()
    previous = dict(texts)
    texts.clear()
    _clear_derived_caches()
    try:
        yield
    except BaseException:
        texts.clear()
        texts.update(previous)
        _clear_derived_caches()
        raise


def _clear_derived_caches() -> None:
    """Clear the caches of values derived from the files' texts."""
    expanded.cache_clear()
    _target.cache_clear()


@cache
def _texts() -> dict[Path, str]:
    """Return the cache of texts, by file."""
    return {}


def _text(path: Path) -> str:
    result = _texts().get(path)
    if result is None:
        result = _texts()[path] = _read(path)
    return result


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ShaderError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ShaderError(f"{path}: expected UTF-8, got {error}") from None
