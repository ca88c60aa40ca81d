"""Nodes that only move numbers, of types that glnn's operators do not have.

The operators of the float32 node move positions instead, and the numbers are taken from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glnn.errors import ShapeError
from glnn.graph.graph import Graph, Value
from glnn.onnx.host_node import HostNode, host_graph
from glnn.onnx.operators.conversion import CONVERTED
from glnn.onnx.widened import Convert, substituted_graph
from glnn.types import Array, TensorType

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
"""Slices of the operands whose numbers an ONNX operator moves to its results; all are of one
type.
"""


@dataclass(frozen=True, eq=False)
class MoveNode(HostNode):
    """A node that moves numbers, by the graph of the same node of float32."""

    graph: Graph
    """The graph of the float32 node, with an input for each operand and no composites."""
    moved: tuple[bool, ...]
    """Flags, one for each operand: True where its numbers are moved."""

    name: ClassVar[str] = "moved"

    def reference(self, *arrays: Array | None) -> tuple[Array, ...]:
        """Return the results. Position 0 is for what no operand has: a zero, or an empty text."""
        given = [array for array in arrays if array is not None]
        numbers = [array for array, moved in zip(given, self.moved, strict=True) if moved]
        positions, end = [], 1
        for array, moved in zip(given, self.moved, strict=True):
            if not moved:
                positions.append(array)
                continue
            start, end = end, end + array.size
            positions.append(np.arange(start, end, dtype=np.float64).reshape(array.shape))
        dtype = numbers[0].dtype
        zero = np.array([""], object) if dtype.hasobject else np.zeros(1, dtype)
        all_numbers = np.concatenate([zero, *(array.ravel() for array in numbers)])
        found = (np.asarray(one).astype(np.int64) for one in self.graph.reference(*positions))
        return tuple(np.asarray(all_numbers[one], dtype) for one in found)


def moves(op_type: str, attributes: Mapping[str, Any], operands: Sequence[Value | None]) -> bool:
    """Return True where a node's results are numbers of its operands as they are, or zeros."""
    numbers = [v for v in operands[MOVES[op_type]] if v] if op_type in MOVES else []
    if not numbers or any(v.type.holds or not v.type.ranked for v in numbers):
        return False
    if any(v.type.dtype not in CONVERTED for v in operands if v and v not in numbers):
        return False
    if op_type in ("Resize", "Upsample"):
        way = attributes.get("coordinate_transformation_mode")
        nearest = attributes.get("mode", "nearest") == "nearest"
        return bool(nearest and way != "tf_crop_and_resize")
    return bool(attributes.get("reduction", "none") == "none")


def move_graph(op_type: str, convert: Convert, operands: Sequence[Value | None], why: str) -> Graph:
    """Return a graph of one host operator, which computes a node that `moves`.

    convert: puts the float32 node into a graph. operands: the node's. why: no GPU computes it.
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
