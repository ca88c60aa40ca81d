"""Launch sizes of a kernel: invocations or vertices, as expressions in its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from glnn.kernels.forms import DeclarationError, expected


@dataclass(frozen=True)
class Quantity:
    """Integer expression in a kernel's parameters: a sum of products."""

    terms: tuple[tuple[int | str, ...], ...]  # products to add up

    @classmethod
    def read(cls, value: Any) -> Quantity:
        """Parse an integer, or a text such as "8 * TN * WG_X + 32"."""
        terms = str(value).split("+") if type(value) in (int, str) else [""]
        return cls(tuple(tuple(_factor(f.strip(), value) for f in t.split("*")) for t in terms))

    @property
    def names(self) -> set[str]:
        """The names of the parameters in the expression."""
        return {factor for term in self.terms for factor in term if isinstance(factor, str)}

    def of(self, parameters: Mapping[str, int]) -> int:
        """Evaluate the expression with these values of the `parameters`."""
        return sum(prod(parameters[f] if isinstance(f, str) else f for f in t) for t in self.terms)


def _factor(word: str, value: Any) -> int | str:
    if not word.isdecimal() and not word.isidentifier():
        raise expected("an integer, or parameters as in '4 * TN + 8'", value)
    return int(word) if word.isdecimal() else word


@dataclass(frozen=True)
class Along:
    """A problem size that a grid dimension runs along, and how much one invocation covers."""

    size: str  # its name; a parameter's also does
    covered: Quantity = Quantity(((1,),))  # how much of it one invocation covers

    @classmethod
    def read(cls, value: Any) -> Along:
        """Parse a text such as "n" or "n / 4 / TN"."""
        size, *divisors = value.split("/") if isinstance(value, str) else [""]
        if not size.strip().isidentifier():
            raise expected("a size as 'n' or 'n / TN'", value)
        with_factors = tuple(_factor(divisor.strip(), value) for divisor in divisors)
        return cls(size.strip(), Quantity((with_factors or (1,),)))

    def invocations(self, sizes: Mapping[str, int], parameters: Mapping[str, int]) -> int:
        """Return the number of invocations that cover the size."""
        return -(-sizes[self.size] // self.covered.of(parameters))


@dataclass(frozen=True)
class Launch:
    """The launch of a kernel: workgroup and grid of a compute shader, or vertices of a draw."""

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
        """The names of the sizes that the grid and the instances run along."""
        instances = (self.instances,) if self.instances else ()
        return (*(along.size for axis in self.grid for along in axis), *instances)

    def local_size(self, parameters: Mapping[str, int]) -> tuple[int, int, int]:
        """Return the invocations of a workgroup along x, y and z."""
        x, y, z, *_ = (*(q.of(parameters) for q in self.workgroup), 1, 1, 1)
        return x, y, z

    def groups(
        self, sizes: Mapping[str, int], parameters: Mapping[str, int]
    ) -> tuple[int, int, int]:
        """Return the workgroups along x, y and z for these sizes, without any limit of a device."""
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
        """Return the occupancy on so many processors: the share of invocation slots with work.

        Workgroups reach over the edges, and their number is no multiple of the processors.
        """
        known = {**parameters, **sizes}
        axes = [along for axis in self.grid for along in axis]
        wanted = prod(known[along.size] / along.covered.of(known) for along in axes)
        turns = -(-prod(self.groups(sizes, parameters)) // processors)
        return wanted / max(turns * processors * prod(self.local_size(parameters)), 1)

    @property
    def bounded(self) -> int:
        """Number of dimensions without a grid-stride loop, whose workgroups a device limits."""
        return len(self.grid) - self.strided
