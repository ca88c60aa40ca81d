"""Row of the table of ONNX operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glnn.graph.graph import Value
from glnn.onnx.operators.call import Call
from glnn.types import DType

Convert = Callable[..., "Value | Sequence[Value]"]
"""Puts a node into a graph: is given the Call and a value for each operand, None where one is left
out, and gives the results. Those behind the last that it gives nobody can ask for."""


@dataclass(frozen=True)
class Entry:
    """The converter of an ONNX operator from one version on."""

    name: str
    """ONNX's."""
    since: int
    """The first version of the operator set that it is for; the next entry of the name ends it."""
    convert: Convert
    told: tuple[int, ...] = ()
    """The operands, by number, whose numbers must be known: sizes depend on them."""
    type_only: tuple[int, ...] = ()
    """The operands, by number, of which the results depend on the type alone."""
    domain: str = ""
    """The operator set, "" for ONNX's own."""
    objects: bool = False
    """True where it takes sequences, optional values or texts, which are no tensors of numbers."""
    halves: bool = False
    """True where it takes float16 and bfloat16 itself; else operands are cast to float32 and
    results back.
    """
    dtypes: frozenset[DType] = frozenset()
    """Types of numbers that it takes beyond those of glnn's operators."""

    def __call__(self, call: Call, *operands: Value | None) -> tuple[Value, ...]:
        """The results."""
        found = self.convert(call, *operands)
        return (found,) if isinstance(found, Value) else tuple(found)
