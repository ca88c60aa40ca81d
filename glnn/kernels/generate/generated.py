"""What a generated kernel has of its own for a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Uniform = int | float | tuple[int, ...]
"""A uniform's value; the numbers of an array of them."""


@dataclass(frozen=True)
class OneLaunch:
    """One of several launches that together compute a problem."""

    uniforms: Mapping[str, Uniform]
    """In which it differs from the others."""
    operand: str = ""
    """The operand that it has of its own, where each has one; all have the same binding."""
    after: bool = False
    """Whether it reads what those before it wrote."""
    brief: bool = False
    """Whether it has next to none of the work."""


@dataclass(frozen=True)
class Generated:
    """What is written into a template, and what the program is given."""

    structure: str
    """What makes its program another one, besides the defines."""
    text: Mapping[str, Callable[[], str]]
    """What stands for each line `#include <name>`, by name."""
    defines: Mapping[str, int] = field(default_factory=dict)
    uniforms: Mapping[str, Uniform] = field(default_factory=dict)
    """Sizes too: grids use them."""
    reads: Mapping[str, str | int] = field(default_factory=dict)
    """For feedback, how each operand is read: a texel's format, or an attribute's floats."""

    launches: tuple[OneLaunch, ...] = ()
    """The launches that compute it, one after the other, where there are several (compute)."""

    def __hash__(self) -> int:
        return hash(self.structure)

    @property
    def texts(self) -> dict[str, str]:
        """The text for each name."""
        return {name: make() for name, make in self.text.items()}
