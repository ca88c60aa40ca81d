"""Convolutions."""

from __future__ import annotations

from typing import Any

from glnn.graph.operators import Conv2d
from tests.gradients.case import Array, Case


def convolution(t: Any, x: Array, weight: Array, op: Conv2d) -> Any:
    """The same in PyTorch, which pads both sides alike."""
    top, left, bottom, right = op.padding
    x = t.nn.functional.pad(x, (left, right, top, bottom))
    how = {"stride": op.stride, "dilation": op.dilation, "groups": op.groups}
    return t.nn.functional.conv2d(x, weight, **how)


def case(name: str, x: tuple[int, ...], weight: tuple[int, ...], **how: Any) -> Case:
    op = Conv2d(**how)
    return Case(f"conv2d {name}", op, (x, weight), torch=lambda t, a, b: convolution(t, a, b, op))


CASES = [
    case("one", (1, 1, 1, 1), (1, 1, 1, 1)),
    case("padded", (2, 3, 7, 5), (4, 3, 3, 3), padding=(1, 1, 1, 1)),
    case("valid", (3, 1, 8, 8), (6, 1, 5, 5)),
    case("strides", (2, 4, 9, 8), (5, 4, 3, 2), stride=(2, 3), padding=(0, 1, 2, 1)),
    case("dilated groups", (2, 4, 11, 13), (6, 2, 3, 3), stride=(3, 2), dilation=(2, 2), groups=2),
    case("depthwise", (1, 5, 7, 7), (5, 1, 3, 3), padding=(1, 1, 1, 1), groups=5),
    case("depth multiplied", (2, 3, 8, 6), (6, 1, 3, 1), stride=(2, 2), groups=3),
    case("products", (2, 8, 6, 5), (7, 8, 1, 1)),
    case("strided products", (2, 3, 7, 7), (4, 3, 1, 1), stride=(2, 2)),
    case("dilated", (1, 2, 10, 4), (3, 2, 2, 3), dilation=(3, 1), padding=(4, 3, 1, 0)),
    case("long", (1, 1, 127, 3), (2, 1, 7, 3), stride=(4, 1), padding=(3, 1, 3, 1)),
]
