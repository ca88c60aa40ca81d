"""Converters of ONNX operators, and the interface by which they read a node and build a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from glnn.core.symint import as_integer
from glnn.core.types import ANYTHING, Array, DType, TensorType
from glnn.errors import ShapeError
from glnn.graph.compose.node_adder import NodeAdder
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import Transpose
from glnn.graph.operators.host import CONVERTED, HostCast, convert_array
from glnn.onnx.operators.dtypes import HALVES

T = TypeVar("T")


@dataclass(frozen=True)
class OperatorCall(NodeAdder):
    """An ONNX node that is being converted, and the builder of its graph. name: ONNX's."""

    version: int
    """The version of its domain's operator set that the model imports."""
    attributes: Mapping[str, Any]
    """Attributes by name: int, float, str, tuples of these, and arrays for tensors."""
    outputs: int = 1
    """The number of the node's results."""
    used_outputs: tuple[bool, ...] = (True,)
    """Flags, one for each result: True where something may read it."""

    def cast(self, value: Value, dtype: DType) -> Value:
        """Return `value` as `dtype`; the host casts dtypes that no function of expressions has."""
        if value.type.dtype is dtype or {value.type.dtype, dtype} <= CONVERTED:
            return super().cast(value, dtype)
        if value.kind is Kind.CONSTANT:
            return self.constant(convert_array(self.array(value), dtype))
        return self(HostCast(value.type.dtype, dtype), value)

    @overload
    def widened(self, value: Value) -> Value: ...
    @overload
    def widened(self, value: Value | None) -> Value | None: ...
    def widened(self, value: Value | None) -> Value | None:
        """Return `value` as float32 where it is float16 or bfloat16."""
        return self.cast(value, DType.float32) if value and value.type.dtype in HALVES else value

    def get(self, attribute: str, default: T) -> T:
        """Return an attribute, `default` where the node lacks it."""
        return self.attributes.get(attribute, default)  # type: ignore[no-any-return]

    def need(self, attribute: str) -> Any:
        """Return a required attribute. Raises ShapeError where it is missing."""
        if attribute not in self.attributes:
            raise ShapeError(f"{self.name}: the attribute {attribute!r} is missing")
        return self.attributes[attribute]

    def array(self, value: Value, what: str = "operand") -> Array:
        """Return the numbers of a constant. Raises ShapeError for any other value."""
        if value.kind is not Kind.CONSTANT:
            raise ShapeError(f"{self.name}: {what} must be known before a run")
        return value.data  # type: ignore[return-value]

    def integers(self, value: Value, what: str = "operand") -> tuple[int, ...]:
        """Return the integers of a constant. Raises ShapeError for any other value."""
        return tuple(as_integer(n) for n in self.array(value, what).ravel())

    def axis(self, axis: int, value: Value, extra: int = 0) -> int:
        """Return `axis` counted from 0. Raises ShapeError where `value`, with `extra` more
        dimensions, does not have it.
        """
        rank = len(value.type.dims) + extra
        if not -rank <= axis < max(rank, 1):
            raise ShapeError(f"{self.name}: axis must be from {-rank} to {rank - 1}, got {axis}")
        return axis % rank if rank else 0

    def check_bias_size(self, bias: Value, size: int) -> None:
        """Raise ShapeError unless `bias` is (size,)."""
        if bias.type.shape != (size,):
            raise ShapeError(f"{self.name}: the bias must be ({size},), got {bias.type}")

    def add_bias(self, x: Value, bias: Value) -> Value:
        """Return x plus `bias` along its last dimension. Raises ShapeError for another size."""
        if not x.type.dims:
            raise ShapeError(f"{self.name}: a bias of {bias.type} for a number")
        self.check_bias_size(bias, x.type.shape[-1])
        return self.pointwise("a + b", x, bias)

    def channels_first(self, x: Value) -> Value:
        """Return x (n, ..., c) as (n, c, ...)."""
        rank = len(x.type.dims)
        return self(Transpose((0, rank - 1, *range(1, rank - 1))), x)

    def channels_last(self, x: Value) -> Value:
        """Return x (n, c, ...) as (n, ..., c)."""
        return self(Transpose((0, *range(2, len(x.type.dims)), 1)), x)


MICROSOFT = "com.microsoft"
"""The operator set of ONNX Runtime's own operators."""


@dataclass(frozen=True)
class Attribute:
    """The type of an attribute without a default."""

    kind: str
    """The name of its type in ONNX's AttributeProto: INT, FLOAT, STRING, INTS, FLOATS or TENSOR."""
    required: bool = False


REQUIRED_INT = Attribute("INT", required=True)
FLOAT, INTS = Attribute("FLOAT"), Attribute("INTS")
Attributes = Mapping[str, int | float | str | Attribute]
"""The default of each attribute, or an Attribute where it has none."""
KINDS = {int: "INT", float: "FLOAT", str: "STRING"}
"""The names of types in ONNX's AttributeProto, by the types of defaults."""


@dataclass(frozen=True)
class Signature:
    """Operands, results and attributes of an operator that the `onnx` package has no schema of."""

    operands: tuple[int, int]
    """The least and the greatest number of operands."""
    results: tuple[int, int] = (1, 1)
    """The least and the greatest number of results."""
    attributes: Attributes = field(default_factory=dict)
    dtypes: tuple[int | DType | tuple[int, DType], ...] = (0,)
    """For each result its dtype, or the number of the operand that has the same one. If this
    operand is left out: the dtype in a pair (number, dtype), else the first operand's. The last
    entry counts for all further results.
    """

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of attributes by name."""
        return {n: v for n, v in self.attributes.items() if not isinstance(v, Attribute)}

    def attribute(self, name: str) -> Attribute:
        """Return the type of an attribute."""
        value = self.attributes[name]
        return value if isinstance(value, Attribute) else Attribute(KINDS[type(value)])

    def result_types(
        self, operands: Sequence[TensorType | None], count: int
    ) -> tuple[TensorType, ...]:
        """Return the unranked types of `count` results for these types of operands."""
        dtypes = [*self.dtypes, *self.dtypes[-1:] * (count - len(self.dtypes))][:count]
        result = []
        for entry in dtypes:
            if isinstance(entry, DType):
                result.append(TensorType((), entry).unranked)
                continue
            number, default = entry if isinstance(entry, tuple) else (entry, None)
            source = operands[number] if number < len(operands) else None
            if source is None and default is not None:
                source = TensorType((), default)
            source = source or operands[0]
            result.append(TensorType((), source.dtype).unranked if source else ANYTHING)
        return tuple(result)


Convert = Callable[..., "Value | Sequence[Value]"]
"""Puts a node into a graph. Arguments: the call, and a value for each operand, None where one is
left out. Returns the results; models that use further ones are refused.
"""


@dataclass(frozen=True)
class Converter:
    """The converter of an ONNX operator, and what it accepts."""

    name: str
    """ONNX's name of the operator."""
    since: int
    """The first version of the operator set that it converts, up to that of the next entry."""
    convert: Convert
    shape_inputs: tuple[int, ...] = ()
    """The numbers of the operands whose values must be known, as sizes depend on them."""
    type_only: tuple[int, ...] = ()
    """The numbers of the operands of which only the type is used."""
    domain: str = ""
    """The operator set, "" for ONNX's own."""
    objects: bool = False
    """True where it takes sequences, optional values or texts."""
    halves: bool = False
    """True where it accepts float16 and bfloat16. Else operands are cast to float32, results back.
    """
    dtypes: frozenset[DType] = frozenset()
    """Dtypes that it accepts beyond those of glnn's operators."""
    hosted: bool = False
    """True where the host computes it for all operands."""
    signature: Signature | None = None
    """Operands, results and attributes where the `onnx` package has no schema of the operator."""

    def __call__(self, call: OperatorCall, *operands: Value | None) -> tuple[Value, ...]:
        """Convert a node, and return its results."""
        result = self.convert(call, *operands)
        return (result,) if isinstance(result, Value) else tuple(result)
