"""Expansion of a kernel with a variable number of operands to those of a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from glnn.kernels.declaration import Operand
from glnn.kernels.kernel import MANY, Kernel
from glnn.kernels.launch import Quantity


def expanded(
    kernel: Kernel,
    operands: Sequence[str],
    reads: Mapping[str, str | int],
    *,
    apart: bool = False,
) -> Kernel:
    """Return `kernel` with `operands` in the place of those declared together, as `x*`.

    reads: the texel format or the attribute's floats of each operand that is fetched. apart:
    True where each operand has a launch of its own and all share a binding.
    """
    found: dict[str, Operand] = {}
    together: dict[str, Operand] = {}
    for name, operand in kernel.operands.items():
        if name.endswith(MANY):
            together[name[: -len(MANY)]] = operand
        else:
            found[name] = _fetched(operand, reads.get(name))
    for stem, operand in together.items():
        names = [n for n in operands if n.startswith(stem) and n[len(stem) :].isdigit()]
        for i, name in enumerate(names):
            first = operand.binding
            binding = first if first is None or apart else first + i
            found[name] = replace(_fetched(operand, reads.get(name)), binding=binding)
    return replace(kernel, operands=found)


def _fetched(operand: Operand, read: str | int | None) -> Operand:
    """Return `operand` fetched from a texture of format `read`, or as `read` floats a vertex."""
    if operand.texture is None or read is None:
        return operand
    if isinstance(read, int):
        return replace(operand, texture=None, attribute=Quantity.read(read))
    return replace(operand, texture=read)
