"""ONNX's Scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.builder import Builder
from glnn.graph.compose.control import Scan
from glnn.graph.expression import formula
from glnn.graph.graph import Value
from glnn.graph.operators import Flip, Pointwise, Transpose
from glnn.onnx.block import Block
from glnn.onnx.bodied import SubgraphNode, require
from glnn.types import TensorType


@dataclass(frozen=True, eq=False)
class ScanNode(SubgraphNode):
    """ONNX's Scan: values that are carried, then those that are walked along their axes."""

    scanned: int
    """The number of scanned operands."""
    axes: tuple[int, ...]
    """The axis along which each operand is scanned."""
    backward: tuple[bool, ...]
    """Flags, one for each scanned operand: True where it is scanned from its end."""
    out_axes: tuple[int, ...]
    """The axis along which each output of the body is stacked."""
    out_backward: tuple[bool, ...]
    """Flags, one for each stacked output: True where the first iteration comes last."""

    op_type: ClassVar[str] = "Scan"

    def _results(
        self, builder: Builder, operands: Sequence[Value | None], captured: dict[str, Value]
    ) -> list[Value]:
        values = [require(f"value {i}", value) for i, value in enumerate(operands)]
        initial, scanned = values[: -self.scanned], values[-self.scanned :]
        axes = [_axis(axis, v.type) for axis, v in zip(self.axes, scanned, strict=True)]
        walked = [
            builder.add(Flip((axis,)), value, name="backward")[0] if back else value
            for value, axis, back in zip(scanned, axes, self.backward, strict=True)
        ]
        scan = Scan(builder, initial, walked, axes, name="scan")
        (block,) = self.blocks
        here = dict(zip(block.inputs, (*scan.states, *scan.places), strict=True))
        found = block.put(scan.body, {**captured, **here})
        states, rows = found[: len(initial)], found[len(initial) :]
        results = list(scan.results(states, rows))
        for i, (axis, back) in enumerate(zip(self.out_axes, self.out_backward, strict=True)):
            results[len(initial) + i] = _put(builder, results[len(initial) + i], axis, back)
        return self.select_outputs(results)


@dataclass(frozen=True, eq=False)
class BatchedScanNode(SubgraphNode):
    """Scan as it was in version 8: each sample of a batch by itself, of a length of its own.

    The first operand, which may be left out, is the lengths; behind these the values of the states
    keep, and the others are 0.
    """

    scanned: int
    """The number of scanned operands; they are scanned along axis 1, behind the batch."""
    backward: tuple[bool, ...]
    """Flags, one for each scanned operand: True where it is scanned from its end."""

    op_type: ClassVar[str] = "Scan"

    def _results(
        self, builder: Builder, operands: Sequence[Value | None], captured: dict[str, Value]
    ) -> list[Value]:
        lengths = operands[0]
        values = [require(f"value {i}", value) for i, value in enumerate(operands[1:])]
        (block,) = self.blocks
        given = values if lengths is None else [lengths, *values]
        samples = Scan(builder, (), given, name="samples")
        length = None if lengths is None else samples.places[0]
        places = samples.places[len(given) - len(values) :]
        initial, scanned = places[: -self.scanned], places[-self.scanned :]
        if lengths is not None and any(self.backward):
            raise UnsupportedOpError("Scan: sequence_lens of values that are walked backward")
        walked = [
            samples.body.add(Flip((0,)), value, name="backward")[0] if back else value
            for value, back in zip(scanned, self.backward, strict=True)
        ]
        scan = Scan(samples.body, initial, walked, name="scan")
        here = dict(zip(block.inputs, (*scan.states, *scan.places), strict=True))
        found = block.put(scan.body, {**captured, **here})
        states, rows = found[: len(initial)], found[len(initial) :]
        if length is not None:
            (most,) = samples.body.add(Pointwise(formula("cast_int32(a)")), length, name="length")
            within, nothing = formula("where(c < d, a, b)"), formula("where(b < c, a, a - a)")
            states = [
                scan.body.add(Pointwise(within), new, old, scan.number, most, name="state")[0]
                for new, old in zip(states, scan.states, strict=True)
            ]
            rows = [
                scan.body.add(Pointwise(nothing), row, scan.number, most, name="row")[0]
                for row in rows
            ]
        return self.select_outputs(samples.results((), scan.results(states, rows)))


def scan_node(
    block: Block,
    count: int,
    used_outputs: tuple[bool, ...],
    version: int,
    attributes: Mapping[str, Any],
) -> ScanNode | BatchedScanNode:
    """Return the operator of a Scan of `count` operands.

    version: of ONNX's operator set. Raises ShapeError where the attributes do not fit.
    """
    scanned = attributes.get("num_scan_inputs")
    first = 1 if version < 9 else 0
    if not isinstance(scanned, int) or not 1 <= scanned <= count - first:
        raise ShapeError(f"Scan: num_scan_inputs must be from 1 to {count - first}, got {scanned}")
    stacked = len(used_outputs) - (count - first - scanned)

    def integers(name: str, length: int) -> tuple[int, ...]:
        found = attributes.get(name, (0,) * length)
        if not isinstance(found, tuple) or len(found) != length:
            raise ShapeError(f"Scan: {name} must be {length} integers, got {found}")
        return found

    def backward(name: str, length: int) -> tuple[bool, ...]:
        return tuple(map(bool, integers(name, length)))

    if stacked < 0 or len(block.inputs) != count - first or len(block.outputs) != len(used_outputs):
        raise ShapeError(
            f"Scan: the body must have {count - first} inputs and {len(used_outputs)} outputs, "
            f"got {len(block.inputs)} and {len(block.outputs)}"
        )
    if version < 9:
        return BatchedScanNode(
            (block,), count, used_outputs, scanned, backward("directions", scanned)
        )
    return ScanNode(
        (block,),
        count,
        used_outputs,
        scanned,
        integers("scan_input_axes", scanned),
        backward("scan_input_directions", scanned),
        integers("scan_output_axes", stacked),
        backward("scan_output_directions", stacked),
    )


def _axis(axis: int, type: TensorType) -> int:
    """`axis` from 0 on. Raises ShapeError where a value of `type` has it not."""
    if not type.ranked:
        raise ShapeError("Scan: only a run tells how many dimensions a scanned value has")
    rank = len(type.dims)
    if not -rank <= axis < rank:
        raise ShapeError(f"Scan: axis must be from {-rank} to {rank - 1}, got {axis}")
    return axis % rank


def _put(builder: Builder, stacked: Value, axis: int, backward: bool) -> Value:
    """`stacked` along its first dimension, along `axis` instead."""
    if backward:
        (stacked,) = builder.add(Flip((0,)), stacked, name="backward")
    axis = _axis(axis, stacked.type)
    order = [*range(1, len(stacked.type.dims))]
    order.insert(axis, 0)
    return builder.add(Transpose(tuple(order)), stacked, name="stacked")[0] if axis else stacked
