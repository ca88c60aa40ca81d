"""ArrayProgram: weights that follow from sizes, as a flat list of calls of array functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.core.array_functions import FUNCTIONS
from glnn.core.cached_property import cached_property
from glnn.core.process import check_memory
from glnn.core.size_table import Size, SizeIndex, depends, maker, number, size_indices
from glnn.core.types import Array
from glnn.gl.command_buffer import FormatError, plain, size_of

KINDS = "biuf"  # of NumPy's numbers that files have


@dataclass(frozen=True)
class ArrayCall:
    """A call of an array function."""

    function: str | Callable[..., Array]
    """The name of one of FUNCTIONS; or one that has no name, which no file can have."""
    reads: tuple[int, ...]
    """The calls whose results it is given; ~i is the constant i."""
    attributes: tuple[Any, ...]
    """What it is given behind these: plain data, with a SizeIndex for each size."""

    @cached_property
    def called(self) -> Callable[..., Array]:
        """The function."""
        return FUNCTIONS[self.function] if isinstance(self.function, str) else self.function


@dataclass(frozen=True, eq=False)
class ArrayProgram:
    """Calls of array functions, of which some are given sizes."""

    constants: tuple[Array, ...] = ()
    calls: tuple[ArrayCall, ...] = ()
    """Each reads from calls before it alone."""
    results: Mapping[str, int] = field(default_factory=dict)
    """The call that gives each tensor."""
    nbytes: Size = 0
    """Bytes that the results of all calls take, together."""

    @property
    def why_not_saved(self) -> str | None:
        """Why no file can have it; None where one can."""
        named = all(isinstance(one.function, str) for one in self.calls)
        if named and all(array.dtype.kind in KINDS for array in self.constants):
            return None
        return "what makes a weight of sizes has no name in files"

    def data(self) -> list[Any]:
        """Return it as JSON has it, of constants only what they are."""
        return [
            [[one.dtype.str, one.shape] for one in self.constants],
            [[one.function, one.reads, plain(one.attributes)] for one in self.calls],
            dict(self.results),
            plain(self.nbytes),
        ]

    @classmethod
    def from_data(cls, data: Any, words: Sequence[NDArray[np.uint32]]) -> ArrayProgram:
        """Return what `data` gave. words: of each constant. Raises anything where it gave none."""
        constants, calls, results, nbytes = data
        return cls(
            tuple(_constant(*one) for one in zip(constants, words, strict=True)),
            tuple(
                ArrayCall(str(f), tuple(reads), size_of(attributes))
                for f, reads, attributes in calls
            ),
            {str(name): place for name, place in results.items()},
            size_of(nbytes),
        )

    @cached_property
    def needs(self) -> Sequence[frozenset[int]]:
        """The expressions that each call's result depends on, by their places."""
        result: list[frozenset[int]] = []
        for one in self.calls:
            operands = (result[i] for i in one.reads if i >= 0)
            result.append(frozenset(size_indices(one.attributes)).union(*operands))
        return result

    def check(self, expressions: int) -> None:
        """Raise FormatError where it speaks of what is not there. expressions: how many are."""
        count = len(self.calls)
        for i, one in enumerate(self.calls):
            if isinstance(one.function, str) and one.function not in FUNCTIONS:
                raise FormatError(f"there is no array function {one.function!r:.80}")
            if not all(type(at) is int and -len(self.constants) <= at < i for at in one.reads):
                raise FormatError(f"there is nothing to read at {one.reads!r:.80}")
        if not all(type(at) is int and 0 <= at < count for at in self.results.values()):
            raise FormatError(f"there are no results of {count} calls at {self.results!r:.200}")
        for place in size_indices([self.nbytes, *(one.attributes for one in self.calls)]):
            if type(place) is not int or not 0 <= place < expressions:
                raise FormatError(f"there is no expression {place!r:.80}")

    def compute(self, names: tuple[str, ...], numbers: Sequence[int]) -> tuple[Array, ...]:
        """Return the results called `names` for these numbers of the table of expressions."""
        if names not in self._computers:
            self._computers[names] = self._computer(names)
        result: tuple[Array, ...] = self._computers[names](numbers)
        return result

    @cached_property
    def _computers(self) -> dict[tuple[str, ...], Callable[[Sequence[int]], tuple[Array, ...]]]:
        """Functions from numbers to results, by the names of these."""
        return {}

    def _computer(self, names: tuple[str, ...]) -> Callable[[Sequence[int]], tuple[Array, ...]]:
        """Return one flat Python function that calls what `names` need, and keeps no more of it."""
        scope: dict[str, Any] = {"__builtins__": {}}
        ends = [self.results[name] for name in names]
        wanted, read, lines = set(ends), set(ends), list[str]()
        for i in reversed(range(len(self.calls))):
            one = self.calls[i]
            if i in wanted and self.needs[i]:
                wanted.update(one.reads)
                over = {at for at in one.reads if at >= 0 and self.needs[at]} - read
                read |= over
                operands = [self._operand(at, scope) for at in one.reads]
                operands += [_text(value, scope) for value in one.attributes]
                scope[f"f{i}"] = one.called
                lines += [f"del {', '.join(f'v{at}' for at in sorted(over))}"] if over else []
                lines.append(f"v{i} = f{i}({', '.join(operands)})")
        lines.append("")
        results = "".join(f"{self._operand(at, scope)}, " for at in ends)
        body = "".join(f"    {line}\n" for line in reversed(lines))
        text = f"def compute(n):\n{body}    return ({results})\n"
        exec(compile(text, "<arrays of sizes>", "exec"), scope)
        result: Callable[[Sequence[int]], tuple[Array, ...]] = scope["compute"]
        return result

    def _operand(self, at: int, scope: dict[str, Any]) -> str:
        """Return the text of what a call reads; what needs no sizes is put into `scope`."""
        if at >= 0 and self.needs[at]:
            return f"v{at}"
        name = f"k{at}" if at >= 0 else f"c{~at}"
        scope[name] = self.constant_results[at]
        return name

    @cached_property
    def constant_results(self) -> Sequence[Array | None]:
        """The results of calls that need no sizes, None for the others, then the constants."""
        result: list[Any] = [None] * len(self.calls) + [*self.constants[::-1]]
        for i, one in enumerate(self.calls):
            if not self.needs[i]:
                result[i] = one.called(*[result[at] for at in one.reads], *one.attributes)
        read = {at for one, needs in zip(self.calls, self.needs) if needs for at in one.reads}
        for i in range(len(self.calls)):
            if i not in read and i not in self.results.values():
                result[i] = None
        return result


NO_ARRAYS = ArrayProgram()


def _constant(declared: tuple[str, list[int]], words: NDArray[np.uint32]) -> Array:
    """Return an array of its own. Raises FormatError where `words` are not those of one."""
    dtype, shape = declared
    kind = np.dtype(dtype)
    nbytes = kind.itemsize * prod(shape)
    if kind.kind not in KINDS or not 0 <= nbytes <= words.nbytes < nbytes + 4:
        raise FormatError(f"a constant of {words.nbytes} bytes is no {dtype} {shape!r:.80}")
    return np.frombuffer(words.tobytes()[:nbytes], kind).reshape(shape)


def _text(value: Any, scope: dict[str, Any]) -> str:
    """Return the text of an attribute, of the numbers `n`; what is known is put into `scope`."""
    if isinstance(value, SizeIndex):
        return f"n[{value.index}]"
    if isinstance(value, tuple) and depends(value):
        return f"({''.join(f'{_text(one, scope)}, ' for one in value)})"
    name, make = f"a{len(scope)}", maker(value)
    scope[name] = value if make is None else make
    return name if make is None else f"{name}(n)"


class SizedArrays:
    """The results of an ArrayProgram in one binding after another."""

    def __init__(self, program: ArrayProgram) -> None:
        self._program, self._checked = program, 0
        needs = {name: sorted(program.needs[at]) for name, at in program.results.items()}
        self._needs = [
            (name, itemgetter(*some) if some else lambda _: ()) for name, some in needs.items()
        ]
        """What picks the numbers that each tensor depends on."""
        self._keys: dict[str, Any] = {}

    def changed(self, numbers: Sequence[int]) -> dict[str, Array]:
        """Return the tensors that are others for these `numbers` of the expressions than before.

        Raises LimitError, before anything is computed, where the host has too little memory.
        """
        keys = {name: pick(numbers) for name, pick in self._needs}
        names = tuple([name for name, key in keys.items() if self._keys.get(name) != key])
        if not names:
            return {}
        program, self._keys = self._program, keys
        nbytes = number(program.nbytes, numbers)
        if nbytes > self._checked:
            check_memory(nbytes, lambda: "what follows from the sizes of a run")
            self._checked = nbytes
        with np.errstate(all="ignore"):
            arrays = program.compute(names, numbers)
        pairs = zip(names, arrays, strict=True)
        return {name: np.asarray(array, order="C") for name, array in pairs}
