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
    """The name of one of FUNCTIONS; or a function without a name, which cannot be saved."""
    reads: tuple[int, ...]
    """The calls whose results are its operands; ~i is the constant i."""
    attributes: tuple[Any, ...]
    """The arguments behind the operands: plain data, with a SizeIndex for each size."""

    @cached_property
    def callable(self) -> Callable[..., Array]:
        """The function itself."""
        return FUNCTIONS[self.function] if isinstance(self.function, str) else self.function


@dataclass(frozen=True, eq=False)
class ArrayProgram:
    """Calls of array functions, some of which depend on sizes."""

    constants: tuple[Array, ...] = ()
    calls: tuple[ArrayCall, ...] = ()
    """The calls in order: each reads the results of earlier ones."""
    results: Mapping[str, int] = field(default_factory=dict)
    """The call that returns each tensor, by the tensor's name."""
    nbytes: Size = 0
    """Bytes of the results of all calls together."""

    @property
    def why_not_saved(self) -> str | None:
        """The reason why it cannot be saved; None where it can."""
        named = all(isinstance(one.function, str) for one in self.calls)
        if named and all(array.dtype.kind in KINDS for array in self.constants):
            return None
        return "what makes a weight of sizes has no name in files"

    def data(self) -> list[Any]:
        """Return it as data for JSON, with dtypes and shapes in the place of constants."""
        return [
            [[one.dtype.str, one.shape] for one in self.constants],
            [[one.function, one.reads, plain(one.attributes)] for one in self.calls],
            dict(self.results),
            plain(self.nbytes),
        ]

    @classmethod
    def from_data(cls, data: Any, words: Sequence[NDArray[np.uint32]]) -> ArrayProgram:
        """Return the program that `data()` returned; any exception for other data.

        words: the content of each constant.
        """
        constants, calls, results, nbytes = data
        return cls(
            tuple(_constant(*one) for one in zip(constants, words, strict=True)),
            tuple(
                ArrayCall(str(f), tuple(reads), size_of(attributes))
                for f, reads, attributes in calls
            ),
            {str(name): call for name, call in results.items()},
            size_of(nbytes),
        )

    @cached_property
    def needs(self) -> Sequence[frozenset[int]]:
        """The indices of the expressions that the result of each call depends on."""
        result: list[frozenset[int]] = []
        for one in self.calls:
            operands = (result[i] for i in one.reads if i >= 0)
            result.append(frozenset(size_indices(one.attributes)).union(*operands))
        return result

    def check(self, expressions: int) -> None:
        """Raise FormatError where an index is out of range. expressions: how many there are."""
        count = len(self.calls)
        for i, one in enumerate(self.calls):
            if isinstance(one.function, str) and one.function not in FUNCTIONS:
                raise FormatError(f"there is no array function {one.function!r:.80}")
            if not all(type(j) is int and -len(self.constants) <= j < i for j in one.reads):
                raise FormatError(f"there is nothing to read at {one.reads!r:.80}")
        if not all(type(i) is int and 0 <= i < count for i in self.results.values()):
            raise FormatError(f"there are no results of {count} calls at {self.results!r:.200}")
        for index in size_indices([self.nbytes, *(one.attributes for one in self.calls)]):
            if type(index) is not int or not 0 <= index < expressions:
                raise FormatError(f"there is no expression {index!r:.80}")

    def compute(self, names: tuple[str, ...], numbers: Sequence[int]) -> tuple[Array, ...]:
        """Return the results called `names` for these values of the expressions."""
        if names not in self._computers:
            self._computers[names] = self._computer(names)
        result: tuple[Array, ...] = self._computers[names](numbers)
        return result

    @cached_property
    def _computers(self) -> dict[tuple[str, ...], Callable[[Sequence[int]], tuple[Array, ...]]]:
        """The functions from numbers to results, by the names of the results."""
        return {}

    def _computer(self, names: tuple[str, ...]) -> Callable[[Sequence[int]], tuple[Array, ...]]:
        """Generate a flat Python function that computes `names`.

        Its lines are generated from the last one to the first, so that a variable can be deleted
        behind its last reader.
        """
        scope: dict[str, Any] = {"__builtins__": {}}
        outputs = [self.results[name] for name in names]
        needed, live, lines = set(outputs), set(outputs), list[str]()
        for i in reversed(range(len(self.calls))):
            one = self.calls[i]
            if i in needed and self.needs[i]:
                needed.update(one.reads)
                last_read = {j for j in one.reads if j >= 0 and self.needs[j]} - live
                live |= last_read
                operands = [self._operand(j, scope) for j in one.reads]
                operands += [_text(value, scope) for value in one.attributes]
                scope[f"f{i}"] = one.callable
                if last_read:
                    lines.append(f"del {', '.join(f'v{j}' for j in sorted(last_read))}")
                lines.append(f"v{i} = f{i}({', '.join(operands)})")
        lines.append("")
        results = "".join(f"{self._operand(i, scope)}, " for i in outputs)
        body = "".join(f"    {line}\n" for line in reversed(lines))
        text = f"def compute(n):\n{body}    return ({results})\n"
        exec(compile(text, "<arrays of sizes>", "exec"), scope)
        result: Callable[[Sequence[int]], tuple[Array, ...]] = scope["compute"]
        return result

    def _operand(self, index: int, scope: dict[str, Any]) -> str:
        """Return the text of an operand; one that depends on no sizes is put into `scope`."""
        if index >= 0 and self.needs[index]:
            return f"v{index}"
        name = f"k{index}" if index >= 0 else f"c{~index}"
        scope[name] = self.constant_results[index]
        return name

    @cached_property
    def constant_results(self) -> Sequence[Array | None]:
        """The results of calls that depend on no sizes, None for others, then the constants."""
        result: list[Any] = [None] * len(self.calls) + [*self.constants[::-1]]
        for i, one in enumerate(self.calls):
            if not self.needs[i]:
                result[i] = one.callable(*[result[j] for j in one.reads], *one.attributes)
        read = {j for one, needs in zip(self.calls, self.needs) if needs for j in one.reads}
        for i in range(len(self.calls)):
            if i not in read and i not in self.results.values():
                result[i] = None
        return result


NO_ARRAYS = ArrayProgram()


def _constant(declared: tuple[str, list[int]], words: NDArray[np.uint32]) -> Array:
    """Return a copy of a constant. Raises FormatError where `words` do not fit its declaration."""
    dtype, shape = declared
    kind = np.dtype(dtype)
    nbytes = kind.itemsize * prod(shape)
    if kind.kind not in KINDS or not 0 <= nbytes <= words.nbytes < nbytes + 4:
        raise FormatError(f"a constant of {words.nbytes} bytes is no {dtype} {shape!r:.80}")
    return np.frombuffer(words.tobytes()[:nbytes], kind).reshape(shape)


def _text(value: Any, scope: dict[str, Any]) -> str:
    """Return the text of an attribute; sizes are read from `n`, other values from `scope`."""
    if isinstance(value, SizeIndex):
        return f"n[{value.index}]"
    if isinstance(value, tuple) and depends(value):
        return f"({''.join(f'{_text(one, scope)}, ' for one in value)})"
    name, make = f"a{len(scope)}", maker(value)
    scope[name] = value if make is None else make
    return name if make is None else f"{name}(n)"


class SizedArrays:
    """The results of an ArrayProgram for a sequence of bindings."""

    def __init__(self, program: ArrayProgram) -> None:
        self._program, self._checked_nbytes = program, 0
        needs = {name: sorted(program.needs[call]) for name, call in program.results.items()}
        self._key_functions = [
            (name, itemgetter(*indices) if indices else lambda _: ())
            for name, indices in needs.items()
        ]
        """The function that picks the numbers that each tensor depends on."""
        self._keys: dict[str, Any] = {}

    def changed(self, numbers: Sequence[int]) -> dict[str, Array]:
        """Return the tensors that differ from those of the last binding.

        numbers: the values of the expressions. Raises LimitError, before anything is computed,
        where the host has too little memory.
        """
        keys = {name: key_function(numbers) for name, key_function in self._key_functions}
        names = tuple([name for name, key in keys.items() if self._keys.get(name) != key])
        if not names:
            return {}
        program, self._keys = self._program, keys
        nbytes = number(program.nbytes, numbers)
        if nbytes > self._checked_nbytes:
            check_memory(nbytes, lambda: "what follows from the sizes of a run")
            self._checked_nbytes = nbytes
        with np.errstate(all="ignore"):
            arrays = program.compute(names, numbers)
        pairs = zip(names, arrays, strict=True)
        return {name: np.asarray(array, order="C") for name, array in pairs}
