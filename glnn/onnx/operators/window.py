"""Windows of convolution and pooling nodes."""

from __future__ import annotations

from collections.abc import Sequence

from glnn.errors import ShapeError
from glnn.graph.compose.window import Sizes, Window
from glnn.graph.operators.windows import check
from glnn.onnx.operators.call import Call


def windows_of(call: Call, sizes: Sizes, kernel: Sequence[int]) -> Window:
    """Return a node's windows for an operand of spatial `sizes`. Raises ShapeError for wrong
    ones.
    """
    count = len(kernel)
    if len(sizes) != count or not count:
        raise ShapeError(f"{call.name}: the kernel {tuple(kernel)} does not fit sizes {sizes}")
    stride = tuple(call.get("strides", (1,) * count))
    dilation = tuple(call.get("dilations", (1,) * count))
    check(
        call.name,
        kernel_shape=(tuple(kernel), count, 1),
        strides=(stride, count, 1),
        dilations=(dilation, count, 1),
    )
    before, after = pads(call, sizes, kernel, stride, dilation)
    ceil = bool(call.get("ceil_mode", 0))
    return Window(tuple(kernel), stride, dilation, before, after, ceil)


def pads(
    call: Call,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[Sizes, Sizes]:
    """Return the padding before and behind each spatial dimension, as `pads` or `auto_pad` says."""
    count = len(kernel)
    mode = call.get("auto_pad", "NOTSET")
    if mode == "VALID":
        return (0,) * count, (0,) * count
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
        ]
        return split_padding(totals, upper=mode == "SAME_UPPER")
    if mode != "NOTSET":
        raise ShapeError(f"{call.name}: auto_pad {mode!r} is not known")
    found = tuple(call.get("pads", (0,) * (2 * count)))
    check(call.name, pads=(found, 2 * count, 0))
    return found[:count], found[count:]


def split_padding(totals: Sequence[int], *, upper: bool) -> tuple[Sizes, Sizes]:
    """Halve each of `totals`, with the larger half behind where `upper`."""
    small, large = tuple(n // 2 for n in totals), tuple(n - n // 2 for n in totals)
    return (small, large) if upper else (large, small)
