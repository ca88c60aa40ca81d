"""A node of an ONNX graph as an operator of a glnn graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from glnn.core.process import out_of_memory
from glnn.core.types import DType, TensorType
from glnn.errors import LimitError, ShapeError, UnsupportedOpError, first_line
from glnn.graph.builder import Builder
from glnn.graph.composite import Composite
from glnn.graph.graph import Graph, Kind, Value
from glnn.graph.operator import Types
from glnn.graph.operators.host import CONVERTED
from glnn.onnx.delegate import Delegate
from glnn.onnx.host_node import Convert, float64_graph, move_graph, moves
from glnn.onnx.operators.call import Converter, OperatorCall
from glnn.onnx.operators.dtypes import HALVES


@dataclass(frozen=True, eq=False)
class OnnxOperator(Composite):
    """A node's operator and attributes.

    The table's converter expands it to glnn's operators. For float64 operands, which some of these
    operators do not take, the host computes the same operators by NumPy. Where there is no
    converter, or it refuses the operands, the host computes the node by the `onnx` package's
    reference.
    """

    op_type: str
    """ONNX's name."""
    version: int
    """The version of its operator set that the model imports."""
    attributes: Mapping[str, Any]
    """Attributes by name, as `OperatorCall` has them."""
    used_outputs: tuple[bool, ...]
    """Flags, one for each result: True where the result has a name in the model."""
    entry: Converter | None
    """The table's converter, if there is one."""
    delegate: Delegate = field(repr=False)
    """Computes the node by NumPy or the `onnx` package's reference."""

    def __str__(self) -> str:
        return self.op_type

    @property
    def shape_inputs(self) -> tuple[str, ...]:
        return () if self.entry is None else tuple(f"x{i}" for i in self.entry.shape_inputs)

    @property
    def type_only(self) -> tuple[str, ...]:
        return () if self.entry is None else tuple(f"x{i}" for i in self.entry.type_only)

    def expand(self, operands: Sequence[Value | None]) -> Graph:
        builder = Builder(self.op_type)
        for value in operands:
            if value is not None and value.kind is not Kind.CONSTANT:
                builder.take(value)
        why = "no kernel computes it" if self.entry is None else self._host_types(operands)
        error: Exception | None = None
        if not why and self.entry is not None:
            try:
                results = self._convert_node(self.entry, builder, operands)
                return builder.graph([_with_name(i, value) for i, value in enumerate(results)])
            except (ShapeError, UnsupportedOpError) as refused:
                error, why = refused, str(refused)
            if any(v and v.type.dtype is DType.float64 for v in operands):
                try:
                    return self._float64_graph(self.entry, operands)
                except (ShapeError, UnsupportedOpError) as refused:
                    error, why = refused, str(refused)
        elif self.entry is not None and moves(self.op_type, self.attributes, operands):
            return move_graph(self.op_type, self._convert(self.entry), operands, why)
        try:
            return self.delegate.graph(operands, why)
        except (ShapeError, UnsupportedOpError) as refused:
            raise (error or refused) from None

    def _float64_graph(self, entry: Converter, operands: Sequence[Value | None]) -> Graph:
        """Return the graph of a float64 node, by the operators of the float32 node."""
        dtypes = [one.dtype for one in self.delegate.infer_types(operands)]
        return float64_graph(self.op_type, self._convert(entry), operands, dtypes)

    def _convert(self, entry: Converter) -> Convert:
        """Return a function that puts the node into a graph as `entry` does."""

        def convert(builder: Builder, operands: Sequence[Value | None]) -> list[Value]:
            return self._convert_node(entry, builder, operands)

        return convert

    @property
    def random(self) -> bool:
        return self.delegate.random

    def unknown(self, types: Types) -> tuple[TensorType, ...]:
        return self.delegate.unknown(types)

    def _host_types(self, operands: Sequence[Value | None]) -> str:
        """Return why glnn's operators do not take operands of such types; empty where they do."""
        if self.entry is not None and self.entry.objects:
            return ""
        target_dtypes = [one for one in self.attributes.values() if isinstance(one, DType)]
        supported = CONVERTED if self.entry is None else CONVERTED | self.entry.dtypes
        if self.entry is not None and not self.entry.halves and DType.bfloat16 not in target_dtypes:
            supported |= {DType.bfloat16}
        dtypes = [value.type.dtype for value in operands if value is not None]
        type_only = () if self.entry is None else self.entry.type_only
        if type_only and not supported.issuperset(dtypes):
            # Operands of which only the type is read matter only where a result takes their dtype,
            # as CastLike's does.
            dtypes = [v.type.dtype for i, v in enumerate(operands) if v and i not in type_only]
            dtypes += [type.dtype for type in self.delegate.infer_types(operands)]
        unsupported = dict.fromkeys(
            one.value for one in (*dtypes, *target_dtypes) if one not in supported
        )
        return f"{' and '.join(unsupported)} is the host's" if unsupported else ""

    def _convert_node(
        self, entry: Converter, builder: Builder, operands: Sequence[Value | None]
    ) -> list[Value]:
        """Return the used results, as the table's entry makes them."""
        count = len(self.used_outputs)
        call = OperatorCall(
            builder, self.op_type, self.version, self.attributes, count, self.used_outputs
        )
        half = None if entry.halves or entry.objects else _half(operands)
        are_halves = self._are_halves(operands)
        if half is not None:
            operands = [
                call.cast(v, DType.float32) if v and v.type.dtype is half else v for v in operands
            ]
        try:
            results = entry(call, *operands)
        except (LimitError, ShapeError, UnsupportedOpError):
            raise
        except MemoryError as error:
            raise out_of_memory(error) from None
        except Exception as error:  # of many kinds, for operands or attributes that do not fit
            types = ", ".join(str(v.type) if v else "none" for v in operands)
            why = f"operands {types} do not fit: {first_line(error)}"
            raise ShapeError(f"{self.op_type}: {why}") from None
        if len(results) < count and any(self.used_outputs[len(results) :]):
            what = f"its result {self.used_outputs.index(True, len(results))} is not computed"
            raise UnsupportedOpError(f"{self.op_type}: {what}")
        result = [v for v, used in zip(results, self.used_outputs, strict=False) if used]
        if half is not None:
            result = [
                call.cast(v, half) if v.type.dtype is DType.float32 and is_half else v
                for v, is_half in zip(result, are_halves, strict=False)
            ]
        return result

    def _are_halves(self, operands: Sequence[Value | None]) -> Sequence[bool]:
        """Return for each used result whether it is of 16 bits, as some operands are.

        Where other operands are float32, ONNX's inference decides, as for OneHot's values.
        """
        count = sum(self.used_outputs)
        if _half(operands) is None or all(
            v is None or v.type.dtype is not DType.float32 for v in operands
        ):
            return (True,) * count
        try:
            return [one.dtype is not DType.float32 for one in self.delegate.infer_types(operands)]
        except (ShapeError, UnsupportedOpError):
            return (True,) * count


def _half(operands: Sequence[Value | None]) -> DType | None:
    """Return the 16-bit type among the operands, which are computed as float32; None where none
    is.
    """
    return next((v.type.dtype for v in operands if v and v.type.dtype in HALVES), None)


def _with_name(number: int, result: Value) -> Value:
    """Return `result`, a constant with a unique name: constants share one."""
    return replace(result, name=f"result {number}") if result.kind is Kind.CONSTANT else result
