"""Sequences and optional values, which are lists of arrays or None, computed by the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glnn.core.types import UNRANKED, Array, DType, TensorType, boxed, unboxed
from glnn.errors import ShapeError, first_line
from glnn.graph.graph import Value
from glnn.graph.operator import Constants, Cost, Types
from glnn.graph.operators.host import HostOperator
from glnn.onnx.operators.call import Converter, OperatorCall
from glnn.onnx.operators.dtypes import type_from_text, type_of, type_text


@dataclass(frozen=True, eq=False)
class ObjectOperator(HostOperator):
    """An operator on sequences and optional values, computed by the host. x0, x1, ...: operands."""

    what: str
    """The ONNX operator's name."""
    function: Callable[..., Any]
    """Returns the result for the operands, which are arrays, lists of arrays or None."""
    type: TensorType
    """The result's type."""

    name: ClassVar[str] = "of_objects"

    @property
    def display_name(self) -> str:
        return self.what

    @property
    def reason(self) -> str:
        return "sequences and optional values are the host's"

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return (self.type,)

    def propagate_constants(
        self, types: Types, constants: Constants = (), results: Sequence[TensorType] | None = None
    ) -> tuple[Array | None, ...]:
        return (None,)

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        try:
            result = self.function(*(None if array is None else unboxed(array) for array in arrays))
        except ShapeError:
            raise
        except (TypeError, ValueError, IndexError) as error:  # for other operands
            raise ShapeError(f"{self.what}: {first_line(error)}") from None
        if self.type.holds:
            return (boxed(_convert_tensors(self.type.holds, result)),)
        return (np.asarray(result, self.type.dtype.numpy),)

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


def _convert_tensors(holds: str, value: Any) -> Any:
    """Return `value` with its tensors in the dtype of `holds`; those of constants have 64 bits."""
    inner = holds.removesuffix(")").partition("(")[2]
    if isinstance(value, list):
        return [_convert_tensors(inner, one) for one in value]
    while inner and not holds.startswith("tensor("):
        holds, inner = inner, inner.removesuffix(")").partition("(")[2]
    return np.asarray(value, type_from_text(holds).dtype.numpy) if value is not None else None


def _make(
    call: OperatorCall, compute: Callable[..., Any], type: TensorType, *operands: Value
) -> Value:
    return call(ObjectOperator(call.name, compute, type), *operands)


def _inner(call: OperatorCall, value: Value, kind: str) -> TensorType:
    """Return the type of the elements of `value`. kind: "seq" or "optional", which it must be."""
    outer, _, inner = value.type.holds.removesuffix(")").partition("(")
    if outer != kind:
        raise ShapeError(f"{call.name}: {kind}(...) is taken, got {value.type}")
    return type_from_text(inner)


def _sequence(inner: TensorType) -> TensorType:
    return TensorType((), DType.object, f"seq({type_text(inner)})")


def _list_index(items: list[Any], position: Array, end: int = 0) -> int:
    """Return an index below len(items) + end. Raises ShapeError for one out of range."""
    number = int(position.item())
    if not -len(items) <= number < len(items) + end:
        raise ShapeError(f"a sequence of {len(items)} has no position {number}")
    return number


def sequence_construct(call: OperatorCall, *items: Value) -> Value:
    """Return a sequence of the operands."""
    if len({item.type.dtype for item in items}) != 1:
        raise ShapeError("SequenceConstruct: the operands must be of one type, at least one")
    return _make(call, lambda *arrays: list(arrays), _sequence(items[0].type), *items)


def sequence_empty(call: OperatorCall) -> Value:
    """Return an empty sequence."""
    return _make(call, list, _sequence(TensorType((UNRANKED,), call.get("dtype", DType.float32))))


def sequence_at(call: OperatorCall, items: Value, position: Value) -> Value:
    """Return the item at a position; negative positions count from the end."""
    type = _inner(call, items, "seq")
    return _make(call, lambda arrays, at: arrays[_list_index(arrays, at)], type, items, position)


def sequence_insert(
    call: OperatorCall, items: Value, item: Value, position: Value | None = None
) -> Value:
    """Return the sequence with `item` inserted, by default at the end."""
    inner = _inner(call, items, "seq")
    if inner.dtype is not item.type.dtype:
        raise ShapeError(f"SequenceInsert: {items.type} cannot take {item.type}")

    def insert(items: list[Any], new: Any, position: Array | None = None) -> list[Any]:
        index = len(items) if position is None else _list_index(items, position, 1)
        return [*items[:index], new, *items[index:]]

    operands = (items, item) if position is None else (items, item, position)
    return _make(call, insert, items.type, *operands)


def sequence_erase(call: OperatorCall, items: Value, position: Value | None = None) -> Value:
    """Return the sequence without an item, by default the last."""

    def erase(items: list[Any], position: Array | None = None) -> list[Any]:
        result = list(items)
        del result[_list_index(items, np.array(-1) if position is None else position)]
        return result

    _inner(call, items, "seq")
    return _make(call, erase, items.type, *((items,) if position is None else (items, position)))


def sequence_length(call: OperatorCall, items: Value) -> Value:
    """Return the number of items, an int64."""
    _inner(call, items, "seq")
    return _make(call, lambda arrays: np.array(len(arrays)), TensorType((), DType.int64), items)


def split_to_sequence(call: OperatorCall, x: Value, split: Value | None = None) -> Value:
    """Split x along an axis, into parts of one size or of listed sizes, else of size 1."""
    axis = call.axis(call.get("axis", 0), x)
    keepdims = split is not None or bool(call.get("keepdims", 1))

    def parts(array: Array, sizes: Array | None = None) -> list[Array]:
        length = array.shape[axis]
        if sizes is not None and sizes.ndim > 1:
            raise ShapeError(f"SplitToSequence: sizes must be a list, got {sizes.shape}")
        if sizes is not None and sizes.ndim:
            cuts = np.cumsum(sizes)
            if (len(cuts) and cuts[-1] != length) or (sizes < 0).any():
                raise ShapeError(
                    f"SplitToSequence: sizes must add up to {length}, got {sizes.tolist()}"
                )
            result = np.split(array, cuts[:-1], axis)
        else:
            step = 1 if sizes is None else int(sizes.item())
            if step < 1:
                raise ShapeError(f"SplitToSequence: a size must be positive, got {step}")
            result = np.split(array, range(step, length, step), axis) if length else []
        return result if keepdims else [part.squeeze(axis) for part in result]

    return _make(call, parts, _sequence(x.type), *((x,) if split is None else (x, split)))


def concat_from_sequence(call: OperatorCall, items: Value) -> Value:
    """Return all items as one tensor, along an existing axis or a new one."""
    inner, axis, new = _inner(call, items, "seq"), call.need("axis"), call.get("new_axis", 0)

    def join(arrays: list[Array]) -> Array:
        try:
            return np.stack(arrays, axis) if new else np.concatenate(arrays, axis)
        except ValueError as error:
            raise ShapeError(f"ConcatFromSequence: {error}") from None

    return _make(call, join, inner, items)


def optional(call: OperatorCall, value: Value | None = None) -> Value:
    """Return `value` as an optional value, which may be missing."""
    if value is not None:
        type = TensorType((), DType.object, f"optional({type_text(value.type)})")
        return _make(call, lambda array: array, type, value)
    inner = type_text(type_of(call.need("type")))
    return _make(call, lambda: None, TensorType((), DType.object, f"optional({inner})"))


def optional_has_element(call: OperatorCall, value: Value | None = None) -> Value:
    """Return a bool that is True where the optional value has an element."""
    if value is None:
        return call.constant(np.array(False))
    if not value.type.holds.startswith("optional("):
        return call.constant(np.array(True))
    return _make(call, lambda array: array is not None, TensorType((), DType.bool), value)


def optional_get_element(call: OperatorCall, value: Value) -> Value:
    """Return the element of an optional value. Raises ShapeError in a run without one."""
    if not value.type.holds.startswith("optional("):
        return value

    def element(content: Any) -> Any:
        if content is None:
            raise ShapeError("OptionalGetElement: the value is missing")
        return content

    return _make(call, element, _inner(call, value, "optional"), value)


ENTRIES = (
    Converter("SequenceConstruct", 11, sequence_construct, objects=True),
    Converter("SequenceEmpty", 11, sequence_empty, objects=True),
    Converter("SequenceAt", 11, sequence_at, objects=True),
    Converter("SequenceInsert", 11, sequence_insert, objects=True),
    Converter("SequenceErase", 11, sequence_erase, objects=True),
    Converter("SequenceLength", 11, sequence_length, objects=True),
    Converter("SplitToSequence", 11, split_to_sequence, objects=True),
    Converter("ConcatFromSequence", 11, concat_from_sequence, objects=True),
    Converter("Optional", 15, optional, objects=True),
    Converter("OptionalHasElement", 15, optional_has_element, objects=True),
    Converter("OptionalGetElement", 15, optional_get_element, objects=True),
)
