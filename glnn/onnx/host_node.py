"""Nodes that the host computes for operands of known types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from glnn.core.types import Array, DType, TensorType
from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import Builder
from glnn.graph.graph import FOLDED, GROWTH, Graph, Kind, Node, Value
from glnn.graph.operator import Constants, Cost, Types
from glnn.graph.operators.host import CONVERTED, HostOperator
from glnn.graph.passes.inlining import expand_composites


@dataclass(frozen=True, eq=False)
class HostNode(HostOperator):
    """A node of a model that only the host computes."""

    op_type: str
    """ONNX's name."""
    types: tuple[TensorType, ...]
    """The types of the results."""
    why: str
    """The reason why the host computes it."""

    @property
    def display_name(self) -> str:
        return self.op_type

    @property
    def reason(self) -> str:
        return self.why

    def infer(self, types: Types, constants: Constants = ()) -> tuple[TensorType, ...]:
        return self.types

    def cost(self, types: Types) -> Cost:
        return Cost(0, 0)


def host_graph(
    op_type: str,
    operator: HostNode,
    operands: Sequence[Value | None],
    types: Sequence[TensorType],
) -> Graph:
    """Return a graph of one operator; of constants only where it folds to results that are small.

    types: of the results. A random operator is never folded.
    """
    present = tuple(value for value in operands if value is not None)
    inputs = tuple(dict.fromkeys(v for v in present if v.kind is not Kind.CONSTANT))
    limit = FOLDED + GROWTH * sum(value.type.nbytes for value in present)
    foldable = present and not inputs and not operator.random
    if foldable and sum(type.nbytes for type in types) <= limit:
        arrays = operator.reference(*(value.data for value in present))  # type: ignore[arg-type]
        constants = tuple(
            Value(
                f"result {i}",
                type if type.holds else TensorType.from_array(array),
                Kind.CONSTANT,
                array,
            )
            for i, (array, type) in enumerate(zip(arrays, types, strict=True))
        )
        return Graph((), (), constants, op_type)
    results = tuple(Value(f"result {i}", type) for i, type in enumerate(types))
    return Graph((Node(op_type, operator, present, results),), inputs, results, op_type)


Convert = Callable[[Builder, Sequence[Value | None]], Sequence[Value]]
"""Puts a node into a graph, given a value for each operand, and returns its results."""


@dataclass(frozen=True, eq=False)
class Float64Node(HostNode):
    """A float64 node: the graph of the same node of float32, evaluated by NumPy in 64 bits."""

    graph: Graph
    """The graph of the float32 node, with an input for each operand and no composites."""

    name: ClassVar[str] = "widened"

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        operands = [array for array in arrays if array is not None]
        with np.errstate(all="ignore"):
            result = self.graph.reference(*operands)
        return tuple(
            np.asarray(array, type.dtype.numpy)
            for array, type in zip(result, self.types, strict=True)
        )


def float64_graph(
    op_type: str, convert: Convert, operands: Sequence[Value | None], dtypes: Sequence[DType]
) -> Graph:
    """Return a graph of one host operator, which computes a node in 64 bits.

    convert: puts the float32 node into a graph. operands: some are float64. dtypes: of the results,
    `DType.object` where unknown. Raises ShapeError and UnsupportedOpError where the float32 node is
    refused.
    """
    graph = _float32_graph(op_type, convert, operands)
    types = tuple(
        TensorType(value.type.dims, _result_dtype(value, dtype))
        for value, dtype in zip(graph.outputs, dtypes, strict=True)
    )
    why = f"{DType.float64.value} is the host's"
    operator = Float64Node(op_type, types, why, graph)
    return host_graph(op_type, operator, operands, types)


def _float32_graph(op_type: str, convert: Convert, operands: Sequence[Value | None]) -> Graph:
    """Return the graph of the float32 node, with an input for each operand.

    float64 constants are inputs, too, so that they are not rounded. They are constants only where
    the conversion needs their numbers and float32 represents these exactly.
    """
    wide = [i for i, value in enumerate(operands) if value and _is_wide(value)]
    try:
        return substituted_graph(op_type, convert, operands, wide, keep_constants=False)
    except (ShapeError, UnsupportedOpError):
        constants = [v for v in operands if v and v.kind is Kind.CONSTANT and _is_wide(v)]
        if not constants or not all(map(_is_exact_in_float32, constants)):
            raise
        return substituted_graph(op_type, convert, operands, wide, keep_constants=True)


def substituted_graph(
    op_type: str,
    convert: Convert,
    operands: Sequence[Value | None],
    float32_operands: Collection[int],
    *,
    keep_constants: bool,
) -> Graph:
    """Return the graph of a node, with an input for each operand, without composites.

    float32_operands: the numbers of the operands whose dtype is replaced by float32.
    keep_constants: True if constants among these are constants of the graph, too.
    """
    builder = Builder(op_type)
    node_operands: list[Value | None] = []
    inputs: list[Value] = []
    for i, value in enumerate(operands):
        if value is None:
            node_operands.append(None)
            continue
        dtype = DType.float32 if i in float32_operands else value.type.dtype
        operand = Value(f"operand {i}", TensorType(value.type.dims, dtype), Kind.INPUT)
        inputs.append(operand)
        if value.kind is Kind.CONSTANT and (keep_constants or i not in float32_operands):
            array = np.asarray(value.data, dtype.numpy)
            operand = Value(f"operand {i}", operand.type, Kind.CONSTANT, array)
        else:
            builder.take(operand)
        node_operands.append(operand)
    outputs = tuple(convert(builder, node_operands))
    graph = builder.graph(list(outputs))
    graph = expand_composites(graph, {value.name: value.type for value in graph.inputs})
    # Every operand is an input, whether it is read or not.
    graph_inputs = {value.name: value for value in graph.inputs}
    return replace(graph, inputs=tuple(graph_inputs.get(value.name, value) for value in inputs))


def _is_wide(value: Value) -> bool:
    return value.type.dtype is DType.float64


def _is_exact_in_float32(value: Value) -> bool:
    """Return True where float32 represents all numbers of a constant exactly."""
    array = np.asarray(value.data)
    with np.errstate(all="ignore"):
        return np.array_equal(array.astype(np.float32).astype(np.float64), array, equal_nan=True)


def _result_dtype(value: Value, dtype: DType) -> DType:
    """Return the dtype of a result: ONNX's where it is known, else float64 in place of float32."""
    if dtype is not DType.object:
        return dtype
    return DType.float64 if value.type.dtype is DType.float32 else value.type.dtype


MOVES: Mapping[str, slice] = {
    "CenterCropPad": slice(1),
    "Concat": slice(None),
    "DepthToSpace": slice(1),
    "Expand": slice(1),
    "Flatten": slice(1),
    "Gather": slice(1),
    "GatherElements": slice(1),
    "GatherND": slice(1),
    "Identity": slice(1),
    "OneHot": slice(2, 3),
    "Pad": slice(0, 3, 2),
    "Reshape": slice(1),
    "Resize": slice(1),
    "ReverseSequence": slice(1),
    "Scatter": slice(0, 3, 2),
    "ScatterElements": slice(0, 3, 2),
    "ScatterND": slice(0, 3, 2),
    "Slice": slice(1),
    "SpaceToDepth": slice(1),
    "Split": slice(1),
    "Squeeze": slice(1),
    "TensorScatter": slice(2),
    "Tile": slice(1),
    "Transpose": slice(1),
    "Trilu": slice(1),
    "Unsqueeze": slice(1),
    "Upsample": slice(1),
    "Where": slice(1, 3),
}
"""By ONNX operator, the slice of operands whose numbers are moved to the results. All of these have
one dtype.
"""


@dataclass(frozen=True, eq=False)
class MoveNode(HostNode):
    """A node that moves numbers, for dtypes without kernels.

    The float32 node's graph moves positions instead of numbers, which are looked up by them.
    """

    graph: Graph
    """The graph of the float32 node, with an input for each operand and no composites."""
    moved: tuple[bool, ...]
    """Flags, one for each operand: True where its numbers are moved."""

    name: ClassVar[str] = "moved"

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        """Return the results. Position 0 has what is in no operand: a zero, or an empty text."""
        operands = [array for array in arrays if array is not None]
        numbers = [array for array, moved in zip(operands, self.moved, strict=True) if moved]
        positions, end = [], 1
        for array, moved in zip(operands, self.moved, strict=True):
            if not moved:
                positions.append(array)
                continue
            start, end = end, end + array.size
            positions.append(np.arange(start, end, dtype=np.float64).reshape(array.shape))
        dtype = numbers[0].dtype
        zero = np.array([""], object) if dtype.hasobject else np.zeros(1, dtype)
        all_numbers = np.concatenate([zero, *(array.ravel() for array in numbers)])
        moved_positions = (
            np.asarray(one).astype(np.int64) for one in self.graph.reference(*positions)
        )
        return tuple(np.asarray(all_numbers[one], dtype) for one in moved_positions)


def moves(op_type: str, attributes: Mapping[str, Any], operands: Sequence[Value | None]) -> bool:
    """Return True where a node's results are unchanged numbers of its operands, or zeros."""
    numbers = [v for v in operands[MOVES[op_type]] if v] if op_type in MOVES else []
    if not numbers or any(v.type.holds or not v.type.ranked for v in numbers):
        return False
    if any(v.type.dtype not in CONVERTED for v in operands if v and v not in numbers):
        return False
    if op_type in ("Resize", "Upsample"):
        coordinates = attributes.get("coordinate_transformation_mode")
        nearest = attributes.get("mode", "nearest") == "nearest"
        return bool(nearest and coordinates != "tf_crop_and_resize")
    return bool(attributes.get("reduction", "none") == "none")


def move_graph(op_type: str, convert: Convert, operands: Sequence[Value | None], why: str) -> Graph:
    """Return a graph of one host operator, which computes a node that `moves` is True for.

    convert: puts the float32 node into a graph. why: the reason why no GPU computes the node.
    Raises ShapeError and UnsupportedOpError where the float32 node is refused.
    """
    numbers = [i for i in range(len(operands))[MOVES[op_type]] if operands[i]]
    dtypes = dict.fromkeys(v.type.dtype for v in operands[MOVES[op_type]] if v)
    if len(dtypes) > 1:
        names = " and ".join(one.value for one in dtypes)
        raise ShapeError(f"{op_type}: operands must be of one type, got {names}")
    (dtype,) = dtypes
    graph = substituted_graph(op_type, convert, operands, numbers, keep_constants=False)
    types = tuple(TensorType(value.type.dims, dtype) for value in graph.outputs)
    moved = tuple(i in numbers for i, value in enumerate(operands) if value is not None)
    return host_graph(op_type, MoveNode(op_type, types, why, graph, moved), operands, types)
