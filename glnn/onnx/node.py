"""An operator of an ONNX graph, as an operator of a graph of glnn's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from glnn.errors import LimitError, ShapeError, UnsupportedOpError, first_line
from glnn.graph.builder import Builder
from glnn.graph.composite import Composite
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operator import Types
from glnn.host_memory import out_of_memory
from glnn.onnx.delegated import Delegate
from glnn.onnx.moved import moved_graph, moves
from glnn.onnx.operators.call import Call
from glnn.onnx.operators.conversion import CONVERTED
from glnn.onnx.operators.dtypes import HALVES
from glnn.onnx.operators.entry import Entry
from glnn.onnx.widened import Convert, widened_graph
from glnn.types import DType, TensorType


@dataclass(frozen=True, eq=False)
class OnnxOperator(Composite):
    """A node's operator and attributes.

    It is what the table's entry makes of it; in float64, which some of glnn's operators are not
    declared for, the host computes the same operators by NumPy. Where there is no entry, or it does
    not know such operands, the host computes the node by the `onnx` package's reference.
    """

    op_type: str
    """ONNX's name."""
    version: int
    """The version of its operator set that the model asks for."""
    attributes: Mapping[str, Any]
    """By name, as `Call` has them."""
    wanted: tuple[bool, ...]
    """For each result, whether it has a name in the model; the others are left out."""
    entry: Entry | None
    """The table's."""
    delegate: Delegate = field(repr=False)
    """The `onnx` package's."""

    def __str__(self) -> str:
        return self.op_type

    @property
    def told(self) -> tuple[str, ...]:
        return () if self.entry is None else tuple(f"x{i}" for i in self.entry.told)

    @property
    def type_only(self) -> tuple[str, ...]:
        return () if self.entry is None else tuple(f"x{i}" for i in self.entry.type_only)

    def express(self, given: Sequence[Value | None]) -> Graph:
        builder = Builder(self.op_type)
        for value in given:
            if value is not None and value.kind is not Kind.CONSTANT:
                builder.take(value)
        why = "no kernel computes it" if self.entry is None else self._strange(given)
        error: Exception | None = None
        if not why and self.entry is not None:
            try:
                results = self._converted(self.entry, builder, given)
                return builder.graph([_named(i, value) for i, value in enumerate(results)])
            except (ShapeError, UnsupportedOpError) as refused:
                error, why = refused, str(refused)
            if any(v and v.type.dtype is DType.float64 for v in given):
                try:
                    return self._widened(self.entry, given)
                except (ShapeError, UnsupportedOpError) as refused:
                    error, why = refused, str(refused)
        elif self.entry is not None and moves(self.op_type, self.attributes, given):
            return moved_graph(self.op_type, self._convert(self.entry), given, why)
        try:
            return self.delegate.graph(given, why)
        except (ShapeError, UnsupportedOpError) as refused:
            raise (error or refused) from None

    def _widened(self, entry: Entry, given: Sequence[Value | None]) -> Graph:
        """The node in 64 bits, by the operators that it is made of in 32."""
        dtypes = [one.dtype for one in self.delegate.inferred(given)]
        return widened_graph(self.op_type, self._convert(entry), given, dtypes)

    def _convert(self, entry: Entry) -> Convert:
        """What puts the node into a graph, as `entry` has it."""

        def convert(builder: Builder, here: Sequence[Value | None]) -> list[Value]:
            return self._converted(entry, builder, here)

        return convert

    @property
    def random(self) -> bool:
        return self.delegate.random

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        return self.delegate.unknown(types)

    def _strange(self, given: Sequence[Value | None]) -> str:
        """Why glnn's operators do not know such operands; empty where they do."""
        if self.entry is not None and self.entry.objects:
            return ""
        asked = [one for one in self.attributes.values() if isinstance(one, DType)]
        known = CONVERTED if self.entry is None else CONVERTED | self.entry.dtypes
        if self.entry is not None and not self.entry.halves and DType.bfloat16 not in asked:
            known |= {DType.bfloat16}
        dtypes = [value.type.dtype for value in given if value is not None]
        unread = () if self.entry is None else self.entry.type_only
        if unread and not known.issuperset(dtypes):
            # Its numbers are not read, but a result may be of that type, as CastLike's.
            dtypes = [v.type.dtype for i, v in enumerate(given) if v and i not in unread]
            dtypes += [type.dtype for type in self.delegate.inferred(given)]
        others = dict.fromkeys(one.value for one in (*dtypes, *asked) if one not in known)
        return f"{' and '.join(others)} is the host's" if others else ""

    def _converted(
        self, entry: Entry, builder: Builder, given: Sequence[Value | None]
    ) -> list[Value]:
        """The results that are wanted, as the table has them."""
        count = len(self.wanted)
        call = Call(builder, self.op_type, self.version, self.attributes, count, self.wanted)
        half = None if entry.halves or entry.objects else _half(given)
        rounded = self._are_halves(given)
        if half is not None:
            given = [
                call.cast(v, DType.float32) if v and v.type.dtype is half else v for v in given
            ]
        try:
            results = entry(call, *given)
        except (LimitError, ShapeError, UnsupportedOpError):
            raise
        except MemoryError as error:
            raise out_of_memory(error) from None
        except Exception as error:  # operands or attributes such as no model should have
            types = ", ".join(str(v.type) if v else "none" for v in given)
            why = f"operands {types} do not fit: {first_line(error)}"
            raise ShapeError(f"{self.op_type}: {why}") from None
        if len(results) < count and any(self.wanted[len(results) :]):
            what = f"its result {self.wanted.index(True, len(results))} is not computed"
            raise UnsupportedOpError(f"{self.op_type}: {what}")
        found = [v for v, wanted in zip(results, self.wanted, strict=False) if wanted]
        if half is not None:
            found = [
                call.cast(v, half) if v.type.dtype is DType.float32 and is_half else v
                for v, is_half in zip(found, rounded, strict=False)
            ]
        return found

    def _are_halves(self, given: Sequence[Value | None]) -> Sequence[bool]:
        """Return for each result that is wanted whether it has 16 bits where operands have.

        Of operands of both sizes ONNX's inference says which the result is of, as OneHot's values.
        """
        count = sum(self.wanted)
        if _half(given) is None or all(
            v is None or v.type.dtype is not DType.float32 for v in given
        ):
            return (True,) * count
        try:
            return [one.dtype is not DType.float32 for one in self.delegate.inferred(given)]
        except (ShapeError, UnsupportedOpError):
            return (True,) * count


def _half(given: Sequence[Value | None]) -> DType | None:
    """The type of 16 bits among operands that are computed with as float32."""
    return next((v.type.dtype for v in given if v and v.type.dtype in HALVES), None)


def _named(number: int, result: Value) -> Value:
    """`result`, with a name of its own where it is a constant, which are all called alike."""
    return replace(result, name=f"result {number}") if result.kind is Kind.CONSTANT else result
