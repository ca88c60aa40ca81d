"""A kernel of any number of operands, with those of a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from glnn.kernels.kernel import MANY, Kernel


def expanded(
    kernel: Kernel,
    operands: Sequence[str],
    reads: Mapping[str, str | int],
    *,
    apart: bool = False,
) -> Kernel:
    """`kernel` with `operands` in the place of those declared together, as `x*`.

    reads: the texels' format or an attribute's floats of each, where it fetches them. apart:
    whether each has a launch of its own, and all the same binding.
    """
    layouts, bindings = dict(kernel.layouts), dict(kernel.bindings)
    attributes = dict(kernel.attributes)
    textures = {name: str(reads.get(name, texel)) for name, texel in kernel.textures.items()}
    for pattern in [name for name in layouts if name.endswith(MANY)]:
        stem = pattern[: -len(MANY)]
        names = [n for n in operands if n.startswith(stem) and n[len(stem) :].isdigit()]
        layout, first = layouts.pop(pattern), bindings.pop(pattern, None)
        texel = textures.pop(pattern, None)
        for i, name in enumerate(names):
            layouts[name] = layout
            if first is not None:
                bindings[name] = first if apart else first + i
            if texel is not None:
                read = reads.get(name, texel)
                if isinstance(read, int):
                    attributes[name] = read
                else:
                    textures[name] = read
    return replace(
        kernel, layouts=layouts, bindings=bindings, textures=textures, attributes=attributes
    )
