"""The directions of ONNX's recurrent nodes, which may have activations of their own."""

from __future__ import annotations

from collections.abc import Callable

from glnn.errors import ShapeError
from glnn.graph.compose.directions import Operands, Results, run
from glnn.graph.compose.recurrent import Phase
from glnn.graph.operators import Concat
from glnn.onnx.operators.activation import activations
from glnn.onnx.operators.call import Call

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def layers(
    call: Call,
    operands: Operands,
    results: int,
    names: tuple[str, ...],
    phases: Callable[..., tuple[Phase, ...]],
) -> Results:
    """Return the results of a recurrent node.

    names: the activations of a direction unless the node has others. phases: function that returns
    the phases of a step for these.

    phases: what these make of a step.
    """
    direction = call.get("direction", "forward")
    backwards = DIRECTIONS.get(direction)
    if backwards is None or operands.weight.type.shape[0] != len(backwards):
        raise ShapeError(
            f"{call.name}: W {operands.weight.type} does not fit direction {direction!r}"
        )
    each = [phases(*own) for own in activations(call, names, len(backwards))]
    whole = call.used_outputs[0]
    if all(own == each[0] for own in each):
        return run(call, operands, each[0], backwards, results, whole=whole)
    runs = [
        run(
            call,
            operands.direction(call, d),
            own,
            (backwards[d],),
            results,
            whole=whole,
        )
        for d, own in enumerate(each)
    ]
    axes = (1, *(0,) * results)
    return tuple(
        call(Concat(axis), *both) for axis, both in zip(axes, zip(*runs, strict=True), strict=True)
    )
