"""ONNX's If and Loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from glnn.errors import ShapeError
from glnn.graph.builder import Builder
from glnn.graph.compose.control import COUNT, Body, branch, loop
from glnn.graph.expression import formula
from glnn.graph.graph import Kind, Value
from glnn.graph.operators import Pointwise
from glnn.graph.operators.control import FLAG
from glnn.onnx.bodied import SubgraphNode, require
from glnn.types import UNKNOWN, UNRANKED, TensorType

TRIES = 4  # how often a loop's body is built until the types that it is given are what it gives


class IfNode(SubgraphNode):
    """ONNX's If: one of two graphs; where the condition is known, that one alone."""

    op_type: ClassVar[str] = "If"

    @property
    def asked(self) -> tuple[str, ...]:
        """The operands whose numbers are read: the condition is one, as the branch that is not
        taken may be wrong for the inputs' shapes.
        """
        return tuple(dict.fromkeys(("x0", *super().asked)))

    def _results(
        self, builder: Builder, operands: Sequence[Value | None], captured: dict[str, Value]
    ) -> list[Value]:
        condition = require("condition", operands[0])
        if condition.kind is Kind.CONSTANT:
            if condition.data.size != 1:  # type: ignore[union-attr]
                raise ShapeError(f"If: condition must be one bool, got {condition.type}")
            block = self.blocks[0 if condition.data.item() else 1]  # type: ignore[union-attr]
            return self.select_outputs(block.put(builder, captured))
        bodies: list[Body] = []
        for block in self.blocks:
            inside = builder.body(block.name)
            bodies.append((inside, self.select_outputs(block.put(inside, captured))))
        return list(branch(builder, condition, *bodies, name="if"))


class LoopNode(SubgraphNode):
    """ONNX's Loop: trips, condition, and the values that are carried."""

    op_type: ClassVar[str] = "Loop"

    def _results(
        self, builder: Builder, operands: Sequence[Value | None], captured: dict[str, Value]
    ) -> list[Value]:
        trips, condition, *rest = operands
        initial = [require(f"value {i}", value) for i, value in enumerate(rest)]
        (block,) = self.blocks
        given = [value.type for value in initial]
        for _ in range(TRIES):
            inside = builder.body(block.name)
            count, going = inside.input("iteration", COUNT), inside.input("going", FLAG)
            # ONNX counts in int64; that this one is an int32 is known, so a GPU computes with it.
            (wide,) = inside.add(
                Pointwise(formula("cast_int64(a)")), count, name="iteration as int64"
            )
            states = [
                inside.input(name, type) for name, type in zip(block.inputs[2:], given, strict=True)
            ]
            values = dict(zip(block.inputs, (wide, going, *states), strict=True))
            last, *found = block.put(inside, {**captured, **values})
            types = [_joined(a, v.type) for a, v in zip(given, found, strict=False)]
            if types == given:
                break
            given = types
        stacked = self._stacked_outputs(found, len(initial))
        body = inside, [last, *found[: len(initial)], *stacked]
        results = loop(builder, body, *initial, trips=trips, condition=condition, name="loop")
        left = iter(results[len(initial) :])
        stacks = [next(left) if used else None for used in self.used_outputs[len(initial) :]]
        every = [*results[: len(initial)], *stacks]
        return [v for v, used in zip(every, self.used_outputs, strict=False) if used and v]

    def _stacked_outputs(self, results: Sequence[Value], count: int) -> list[Value]:
        """Return the stacked results of the body, behind `count` states, that the model uses."""
        pairs = zip(results[count:], self.used_outputs[count:], strict=False)
        return [value for value, used in pairs if used]


def _joined(before: TensorType, after: TensorType) -> TensorType:
    """Return the type of a loop state that is of type `before`, then of type `after`."""
    if before.dtype is not after.dtype or before == after or before.holds:
        return before
    if len(before.dims) != len(after.dims):
        return TensorType((UNRANKED,), before.dtype)
    pairs = zip(before.dims, after.dims, strict=True)
    return TensorType(tuple(a if a == b else UNKNOWN for a, b in pairs), before.dtype)
