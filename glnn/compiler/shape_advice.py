"""Advice for errors about shapes: sizes that would fit, and inputs whose numbers would say more."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.core.types import Array, Shape, TensorType
from glnn.errors import GlnnError
from glnn.graph.graph import Graph

STEPS = (2, 4, 8, 16, 32, 64, 128)
"""Of what sizes may have to be multiples: networks that halve an image and join it with itself."""
LEAST_RANK = 3  # of inputs whose sizes are looked at: the first is the batch, the next the channels
Types = Mapping[str, TensorType]


def nearby_sizes(
    graph: Graph, types: Types, shape_inputs: Mapping[str, Array] | None = None
) -> str:
    """Return which sizes of inputs would fit, as the end of a sentence; empty where none is found.

    Sizes that `graph` leaves open are rounded to multiples of STEPS, down and up; the least step
    that fits is named.

    Args:
        graph: The graph, as it was made.
        types: Its inputs' types, of which some size does not fit.
        shape_inputs: Numbers of inputs, by name, that sizes depend on.
    """
    if any(0 in type.shape for type in types.values()):  # a larger one is no advice for none
        return ""
    if _fits(graph, types, shape_inputs):  # it is not the sizes, or not these alone
        return ""
    for step in STEPS:
        shapes = [_rounded(graph, types, step, up) for up in (False, True)]
        kinds = [{n: types[n].of_shape(there[n]) for n in types} for there in shapes]
        if all(
            _fits(graph, one, shape_inputs) for one in kinds
        ):  # one alone may be a multiple of more
            listed = " or ".join(dict.fromkeys(_format_shapes(there, types) for there in shapes))
            return f"; sizes that are multiples of {step} would do, as {listed}"
    return ""


def missing_numbers(
    graph: Graph, types: Types, shape_inputs: Mapping[str, Array] | None = None
) -> str:
    """Return which inputs' numbers would say more of sizes and branches, as the end of a sentence.

    Empty where all are among `shape_inputs`. The arguments are those of `nearby_sizes`.
    """
    shapes = {name: type.shape for name, type in types.items()}
    missing = [name for name in graph.shape_input_names(shapes) if name not in (shape_inputs or {})]
    if not missing:
        return ""
    names = ", ".join(map(repr, missing))
    return f"; branches and sizes depend on the numbers of {names}, which are not given"


def _fits(graph: Graph, types: Types, shape_inputs: Mapping[str, Array] | None) -> bool:
    """Return whether the types of all values follow from those of the inputs."""
    try:
        graph.propagate_constants(types, shape_inputs)
    except GlnnError:
        return False
    return True


def _rounded(graph: Graph, types: Types, step: int, up: bool) -> dict[str, Shape]:
    """Round the open sizes of inputs but the batch's."""
    result: dict[str, Shape] = {}
    for value in graph.inputs:
        shape, declared = types[value.name].shape, value.type.dims
        result[value.name] = shape
        if len(shape) >= LEAST_RANK and len(shape) == len(declared):
            sides = (
                max(step, -(-size // step) * step if up else size // step * step)
                if i and isinstance(open_size, str)
                else size
                for i, (size, open_size) in enumerate(zip(shape, declared, strict=True))
            )
            result[value.name] = tuple(sides)
    return result


def _format_shapes(shapes: Mapping[str, Shape], types: Types) -> str:
    """Name the inputs of other shapes than they have."""
    return ", ".join(
        f"{name} {there}" for name, there in shapes.items() if there != types[name].shape
    )
