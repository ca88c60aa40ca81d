"""Advice for errors about shapes: sizes that would fit, and inputs whose numbers would say more."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.core.types import Array, Shape, TensorType
from glnn.errors import GlnnError
from glnn.graph.graph import Graph

STEPS = (2, 4, 8, 16, 32, 64, 128)
"""Sizes may have to be multiples of these: networks halve an image, and join the results later."""
LEAST_RANK = 3  # of inputs whose sizes are rounded: the first is the batch, the next the channels
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
    if any(0 in type.shape for type in types.values()):  # a larger size is no advice
        return ""
    if _fits(graph, types, shape_inputs):  # the error is not due to these sizes
        return ""
    for step in STEPS:
        shapes = [_rounded(graph, types, step, up) for up in (False, True)]
        rounded = [{n: types[n].of_shape(sizes[n]) for n in types} for sizes in shapes]
        # Both must fit: one alone may be a multiple of a larger step.
        if all(_fits(graph, one, shape_inputs) for one in rounded):
            listed = " or ".join(dict.fromkeys(_format_shapes(sizes, types) for sizes in shapes))
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
    """Return the inputs' shapes with open sizes rounded, except the batch."""
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
    """Return text with the inputs whose shapes differ from those of `types`."""
    return ", ".join(
        f"{name} {shape}" for name, shape in shapes.items() if shape != types[name].shape
    )
