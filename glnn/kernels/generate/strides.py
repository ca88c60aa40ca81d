"""Strides of broadcast row-major operands along the axes of the broadcast shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glnn.errors import UnsupportedOpError
from glnn.layout import Layout
from glnn.layout.layout import RowMajor
from glnn.symint import same
from glnn.types import Shape


def strides(shape: Shape, own: Shape, layout: Layout) -> list[int]:
    """Return the stride along each axis of `shape` in numbers, 0 where the operand broadcasts.

    own: the shape of an operand in `layout` that broadcasts to `shape`. Raises UnsupportedOpError
    unless the layout is row major.
    """
    if not isinstance(layout, RowMajor):
        raise UnsupportedOpError(f"it takes rows, not what lies in {layout.name}")
    found = [0] * (len(shape) - len(own))
    return found + [0 if same(dim.extent, 1) else dim.stride for dim in layout.dims(own)]


def collapsed(
    axes: Sequence[int], shape: Shape, steps: Mapping[str, Sequence[int]]
) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Merge `axes` of `shape`; return their sizes and the strides of each operand along them.

    steps: each operand's strides along all axes. Neighbouring axes that are contiguous in every
    operand are merged. Without any axis of more than one place, there is one of size 1.
    """
    sizes: list[int] = []
    kept: dict[str, list[int]] = {name: [] for name in steps}
    for axis in axes:
        if same(shape[axis], 1):
            continue
        even = bool(sizes) and all(
            same(kept[name][-1], own[axis] * shape[axis]) for name, own in steps.items()
        )
        sizes[-1:] = [sizes[-1] * shape[axis]] if even else [*sizes[-1:], shape[axis]]
        for name, own in steps.items():
            kept[name][-1:] = [own[axis]] if even else [*kept[name][-1:], own[axis]]
    if not sizes:
        return (1,), dict.fromkeys(steps, (0,))
    return tuple(sizes), {name: tuple(own) for name, own in kept.items()}
