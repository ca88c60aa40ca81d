"""The code and uniforms of a kernel that are generated for a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Uniform = int | float | tuple[int, ...]
"""The value of a uniform; a tuple for an array."""


@dataclass(frozen=True)
class OneLaunch:
    """A launch of several that together compute a spec."""

    uniforms: Mapping[str, Uniform]
    """The uniforms that differ from the other launches'."""
    operand: str = ""
    """The operand of this launch where each has its own; all share a binding."""
    after: bool = False
    """True where it reads results of earlier launches and needs a barrier."""
    brief: bool = False
    """True where it does next to none of the work."""


@dataclass(frozen=True)
class Generated:
    """The texts that fill a kernel's template, and the program's macros and uniforms."""

    structure: str
    """Key of the program: equal structures and defines mean equal code."""
    text: Mapping[str, Callable[[], str]]
    """The function that makes the text for each line `#include <name>`, by name."""
    defines: Mapping[str, int] = field(default_factory=dict)
    uniforms: Mapping[str, Uniform] = field(default_factory=dict)
    """The uniforms, including the sizes that grids use."""
    reads: Mapping[str, str | int] = field(default_factory=dict)
    """The texel format, or the attribute's floats, by which feedback reads each operand."""

    launches: tuple[OneLaunch, ...] = ()
    """The launches, in order, where there are several (compute)."""

    def __hash__(self) -> int:
        return hash(self.structure)

    @property
    def texts(self) -> dict[str, str]:
        """The text for each name."""
        return {name: make() for name, make in self.text.items()}
