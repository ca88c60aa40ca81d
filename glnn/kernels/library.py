"""Every kernel there is: the shaders folder, read once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from glnn.errors import ShaderError
from glnn.glsl import DOCUMENTS, shaders_folder
from glnn.kernels.kernel import BACKENDS, Kernel

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
        for declaration in sorted(part.glob("*/*.toml")):
            kernel = _kernel(declaration)
            other = kernels.setdefault((kernel.op, kernel.name), kernel)
            if other is not kernel:
                raise ShaderError(f"{declaration}: its name is that of {other.declaration}, too")
        declared = {kernel.path for kernel in kernels.values()}
        for suffix in BACKENDS:
            for shader in part.glob(f"*/*{suffix}"):
                if shader not in declared:
                    raise ShaderError(f"{shader}: it has no declaration (.toml) beside it")
    return tuple(kernels.values())


def _kernel(declaration: Path) -> Kernel:
    """The kernel of a declaration. Raises ShaderError."""
    try:
        text = tomllib.loads(declaration.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ShaderError(f"{declaration}: {error}") from None
    if "stages" in text:
        if "shader" in text:
            raise ShaderError(f"{declaration}: shader: a kernel of stages has none")
        return Kernel.declared(declaration, declaration, text)
    name = str(text.get("shader", declaration.stem))
    if not name or Path(name).name != name:
        raise ShaderError(f"{declaration}: shader: expected a name, got {name!r}")
    shader = declaration.with_name(name)
    found = [path for path in (Path(f"{shader}{s}") for s in BACKENDS) if path.exists()]
    if len(found) != 1:
        raise ShaderError(f"{declaration}: expected one shader beside it, found {len(found)}")
    return Kernel.declared(declaration, found[0], text)


@lru_cache(maxsize=1)
def declared() -> tuple[Kernel, ...]:
    """The kernels that ship with glnn, those that are made of stages among them."""
    return read(shaders_folder())


def library() -> tuple[Kernel, ...]:
    """The kernels that are shaders."""
    return tuple(kernel for kernel in declared() if not kernel.stages)


def kernels_for(op: str, backend: str) -> tuple[Kernel, ...]:
    """The kernels of `backend` for the op named `op`, the preferred ones first."""
    return _by_op(declared()).get((op, backend), ())


@lru_cache(maxsize=1)
def _by_op(kernels: tuple[Kernel, ...]) -> Mapping[tuple[str, str], tuple[Kernel, ...]]:
    """The kernels for each op and backend, the preferred ones first."""
    found: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in sorted(kernels, key=lambda k: -k.priority):
        found.setdefault((kernel.op, kernel.backend), []).append(kernel)
    return {key: tuple(some) for key, some in found.items()}
