"""The work of a kernel: how many invocations or vertices, in quantities that parameters are in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from glnn.kernels.forms import DeclarationError, expected


@dataclass(frozen=True)
class Quantity:
    """A number that parameters may be in."""

    terms: tuple[tuple[int | str, ...], ...]  # products to add up

    @classmethod
    def read(cls, value: Any) -> Quantity:
        """That of an integer, or of a text as "8 * TN * WG_X + 32"."""
        terms = str(value).split("+") if type(value) in (int, str) else [""]
        return cls(tuple(tuple(_factor(f.strip(), value) for f in t.split("*")) for t in terms))

    @property
    def names(self) -> set[str]:
        """The parameters in it."""
        return {factor for term in self.terms for factor in term if isinstance(factor, str)}

    def of(self, parameters: Mapping[str, int]) -> int:
        """What it is where the `parameters` have these values."""
        return sum(prod(parameters[f] if isinstance(f, str) else f for f in t) for t in self.terms)


def _factor(word: str, value: Any) -> int | str:
    if not word.isdecimal() and not word.isidentifier():
        raise expected("an integer, or parameters as in '4 * TN + 8'", value)
    return int(word) if word.isdecimal() else word


@dataclass(frozen=True)
class Along:
    """A size that a dimension of the grid runs along."""

    size: str  # its name; a parameter's also does
    covered: Quantity = Quantity(((1,),))  # how much of it one invocation covers

    @classmethod
    def read(cls, value: Any) -> Along:
        """That of a text as "n" or "n / 4 / TN"."""
        size, *divisors = value.split("/") if isinstance(value, str) else [""]
        if not size.strip().isidentifier():
            raise expected("a size as 'n' or 'n / TN'", value)
        with_factors = tuple(_factor(divisor.strip(), value) for divisor in divisors)
        return cls(size.strip(), Quantity((with_factors or (1,),)))

    def invocations(self, sizes: Mapping[str, int], parameters: Mapping[str, int]) -> int:
        """How many it takes."""
        return -(-sizes[self.size] // self.covered.of(parameters))


@dataclass(frozen=True)
class Launch:
    """The work of a kernel: its invocations, or its vertices."""

    workgroup: tuple[Quantity, ...] = ()  # invocations along x, y and z; 1 where nothing is said
    grid: tuple[tuple[Along, ...], ...] = ()  # along x, y and z, what is to be multiplied
    strided: bool = False  # the grid's last dimension is walked in strides, may be cut short
    shared_bytes: Quantity = Quantity(((0,),))  # shared memory of one workgroup
    captures: Quantity = Quantity(((4,),))  # how many floats a vertex captures (feedback)
    instances: str | None = None  # the size that a draw's instances run along (feedback)

    def __post_init__(self) -> None:
        if len(self.workgroup) > 3:
            raise DeclarationError("expected at most three dimensions", "workgroup")
        if len(self.grid) > 3:
            raise DeclarationError("expected one to three dimensions", "grid")

    def check(self, parameters: Mapping[str, int]) -> None:
        """Raise DeclarationError where a quantity is of other parameters, or is too small."""
        covered = [along.covered for axis in self.grid for along in axis]
        bytes_, captured = [self.shared_bytes], [self.captures]
        every = {"workgroup": self.workgroup, "grid": covered, "captures": captured}
        for key, quantities in {**every, "shared_bytes": bytes_}.items():
            for quantity in quantities:
                if unknown := sorted(quantity.names - set(parameters)):
                    raise DeclarationError(f"{unknown[0]} is not one of {tuple(parameters)}", key)
                if key in every and quantity.of(parameters) < 1:
                    raise DeclarationError("expected at least 1 everywhere", key)

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of what the grid and the instances run along."""
        instances = (self.instances,) if self.instances else ()
        return (*(along.size for axis in self.grid for along in axis), *instances)

    def local_size(self, parameters: Mapping[str, int]) -> tuple[int, int, int]:
        """Invocations of a workgroup along x, y and z."""
        x, y, z, *_ = (*(q.of(parameters) for q in self.workgroup), 1, 1, 1)
        return x, y, z

    def groups(
        self, sizes: Mapping[str, int], parameters: Mapping[str, int]
    ) -> tuple[int, int, int]:
        """Workgroups along x, y and z for a problem of these sizes, never cut short."""
        known = {**parameters, **sizes}
        wide = [prod(a.invocations(known, parameters) for a in axis) for axis in self.grid]
        local = self.local_size(parameters)
        x, y, z, *_ = (*(-(-n // size) for n, size in zip(wide, local, strict=False)), 1, 1, 1)
        return x, y, z

    def cut(self, sizes: Mapping[str, int], parameters: Mapping[str, int]) -> int:
        """Return a bit for each axis along which the last workgroup has less to do than others."""
        known, found = {**parameters, **sizes}, 0
        for i, (axis, local) in enumerate(zip(self.grid, self.local_size(parameters))):
            rest = prod(one.invocations(known, parameters) for one in axis) % local
            if rest or any(known[one.size] % one.covered.of(parameters) for one in axis):
                found |= 1 << i
        return found

    def filled(
        self, sizes: Mapping[str, int], parameters: Mapping[str, int], processors: int
    ) -> float:
        """The share of invocations with work in what so many processors do until the last of them
        is done: workgroups reach over the edges, and they are no whole number of turns.
        """
        known = {**parameters, **sizes}
        axes = [along for axis in self.grid for along in axis]
        wanted = prod(known[along.size] / along.covered.of(known) for along in axes)
        turns = -(-prod(self.groups(sizes, parameters)) // processors)
        return wanted / max(turns * processors * prod(self.local_size(parameters)), 1)

    @property
    def bounded(self) -> int:
        """How many dimensions are not walked in strides: a device bounds their workgroups."""
        return len(self.grid) - self.strided
