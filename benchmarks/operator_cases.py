"""Operators of networks but products: sizes, operands, and PyTorch's call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import attention
from benchmarks.timing import CheckedSample
from glnn.core.types import Array, Shape
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    BatchNormalize,
    ChannelSums,
    Concat,
    Conv2d,
    Gather,
    LocalResponseNorm,
    Normalize,
    Pad,
    Pool2d,
    Reorder,
    Resample,
    Roll,
    Slice,
    Softmax,
    Transpose,
)
from glnn.graph.operators.move import Move
from glnn.graph.operators.windows import Pair

Operands = dict[str, Array]
NHWC = {"x": "nhwC4c"}


@dataclass(frozen=True)
class OperatorCase:
    """An operator of a network, by samples.

    make: from a number of samples to the operator and its operands. torch: from PyTorch and the
    operands on the device to the same result; None where it has no call for it. layouts: how
    operands lie in networks, row major unless said. by_sample: whether each sample's result
    follows from its own operands, which have samples first.
    """

    name: str
    make: Callable[[int], tuple[Operator, Operands]]
    torch: Callable[[Any, Mapping[str, Any]], Any] | None = None
    layouts: Mapping[str, str] = field(default_factory=dict)
    by_sample: bool = True

    def checked(self, op: Operator, operands: Operands) -> tuple[CheckedSample, ...]:
        """Return the samples of `operands` whose results are checked: the first and the last, or
        all as one where results depend on other samples'. op: that of all samples.
        """
        if not self.by_sample:
            return (CheckedSample(op, operands),)
        count = next(iter(operands.values())).shape[0]
        op, one = self.make(1)
        shared = {name for name, array in one.items() if operands[name].shape == array.shape}
        return tuple(
            CheckedSample(
                op,
                {name: a if name in shared else a[i : i + 1] for name, a in operands.items()},
                i,
                count,
            )
            for i in sorted({0, count - 1})
        )


def numbers(*shape: int) -> Array:
    """Return random numbers of `shape`, the same whenever it is asked for."""
    return np.random.default_rng(shape).standard_normal(shape, dtype=np.float32)


def samples(count: int, *sample: int) -> Array:
    """Return `count` samples of random numbers. Three differ: the even ones, the odd ones and the
    last, as many of them would take long to make.
    """
    few = numbers(3, *sample)
    index = np.arange(count) % 2
    index[1:][-1:] = 2
    return few[index]


def _pool(name: str, c: int, side: int, op: Pool2d) -> OperatorCase:
    def torch(module: Any, given: Mapping[str, Any]) -> Any:
        x, call = given["x"], module.nn.functional
        if op.kernel is None:
            return call.adaptive_avg_pool2d(x, op.output)
        padding = op.padding[:2]
        if op.mode == "max":
            return call.max_pool2d(x, op.kernel, op.stride, padding, 1, op.ceil_mode)
        return call.avg_pool2d(x, op.kernel, op.stride, padding, op.ceil_mode)

    return OperatorCase(
        f"{name} {c}, {side}", lambda n: (op, {"x": samples(n, c, side, side)}), torch, NHWC
    )


@dataclass(frozen=True)
class Convolution:
    """A convolution of images of `c` channels and `side` x `side` pixels."""

    name: str
    c: int
    o: int
    side: int
    kernel: Pair = (1, 1)
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    height: int | None = None
    """Rows of an image, where these are not `side`."""
    planar: bool = False
    """Whether it takes a network's input, whose channels are planes."""

    @property
    def operator(self) -> Conv2d:
        """The operator, with as much padding as keeps the size, but for the stride."""
        down, across = (self.dilation * (k - 1) // 2 for k in self.kernel)
        stride = 1 if self.height == 1 else self.stride, self.stride
        around = down, across, down, across
        return Conv2d(stride, around, (self.dilation, self.dilation), self.groups)

    def operands(self, batch: int) -> Operands:
        """Return so many random images, and random weights."""
        weight = numbers(self.o, self.c // self.groups, *self.kernel)
        x = samples(batch, self.c, self.side if self.height is None else self.height, self.side)
        return {"x": x, "weight": weight / np.float32(weight.shape[1] ** 0.5)}

    @property
    def case(self) -> OperatorCase:
        """The convolution as one of the operators of networks."""
        op = self.operator
        return OperatorCase(
            self.name,
            lambda batch: (op, self.operands(batch)),
            lambda torch, given: torch.conv2d(
                given["x"], given["weight"], None, op.stride, op.padding[:2], op.dilation, op.groups
            ),
            {} if self.planar else NHWC,
        )


def _depthwise(size: int, c: int, side: int, stride: int = 1, dilation: int = 1) -> Convolution:
    more = f" stride {stride}" * (stride > 1) + f" dilation {dilation}" * (dilation > 1)
    name = f"depthwise {size}x{size}{more} {c}, {side}"
    return Convolution(name, c, c, side, (size, size), stride, dilation, c)


CONVOLUTIONS = (
    Convolution("1x1 64 > 256, 56", 64, 256, 56),
    Convolution("1x1 256 > 64, 56", 256, 64, 56),
    Convolution("1x1 512 > 128, 28", 512, 128, 28),
    Convolution("1x1 256 > 1024, 14", 256, 1024, 14),
    Convolution("1x1 1024 > 256, 14", 1024, 256, 14),
    Convolution("1x1 2048 > 512, 7", 2048, 512, 7),
    Convolution("1x1 24 > 144, 56", 24, 144, 56),
    Convolution("1x1 320 > 1280, 7", 320, 1280, 7),
    Convolution("1x1 stride 2 256 > 512, 56", 256, 512, 56, stride=2),
    Convolution("3x3 64 > 64, 224", 64, 64, 224, (3, 3)),
    Convolution("3x3 64 > 64, 56", 64, 64, 56, (3, 3)),
    Convolution("3x3 128 > 128, 28", 128, 128, 28, (3, 3)),
    Convolution("3x3 256 > 256, 14", 256, 256, 14, (3, 3)),
    Convolution("3x3 512 > 512, 28", 512, 512, 28, (3, 3)),
    Convolution("3x3 512 > 512, 7", 512, 512, 7, (3, 3)),
    Convolution("3x3 128 > 32, 14", 128, 32, 14, (3, 3)),
    Convolution("3x3 stride 2 128 > 128, 56", 128, 128, 56, (3, 3), 2),
    Convolution("3x3 stride 2 512 > 512, 14", 512, 512, 14, (3, 3), 2),
    Convolution("3x3 dilation 2 256 > 256, 28", 256, 256, 28, (3, 3), 1, 2),
    Convolution("3x3 groups 32 128 > 128, 56", 128, 128, 56, (3, 3), 1, 1, 32),
    Convolution("3x3 groups 32 256 > 256, 28", 256, 256, 28, (3, 3), 1, 1, 32),
    Convolution("3x3 groups 32 512 > 512, 14", 512, 512, 14, (3, 3), 1, 1, 32),
    Convolution("3x3 groups 32 1024 > 1024, 7", 1024, 1024, 7, (3, 3), 1, 1, 32),
    Convolution("5x5 48 > 64, 35", 48, 64, 35, (5, 5)),
    Convolution("1x7 192 > 192, 17", 192, 192, 17, (1, 7)),
    Convolution("7x1 192 > 192, 17", 192, 192, 17, (7, 1)),
    Convolution("stem 7x7 stride 2 3 > 64, 224", 3, 64, 224, (7, 7), 2, planar=True),
    Convolution("stem 3x3 stride 2 3 > 32, 224", 3, 32, 224, (3, 3), 2, planar=True),
    Convolution("stem 3x3 3 > 64, 224", 3, 64, 224, (3, 3), planar=True),
    _depthwise(3, 144, 56),
    _depthwise(3, 96, 112, 2),
    _depthwise(3, 960, 7),
    _depthwise(3, 576, 28, dilation=2),
    _depthwise(5, 240, 28),
    _depthwise(5, 672, 14, 2),
    _depthwise(7, 96, 56),
    _depthwise(3, 32, 112),
    _depthwise(3, 144, 56, 2),
    _depthwise(3, 384, 14),
    _depthwise(3, 576, 14, 2),
    _depthwise(5, 672, 14),
    _depthwise(5, 1152, 7),
    _depthwise(7, 192, 28),
    _depthwise(7, 384, 14),
    _depthwise(7, 768, 7),
    Convolution("1x3 80 > 384, 1 x 3000", 80, 384, 3000, (1, 3), height=1),
    Convolution("1x3 stride 2 384 > 384, 1 x 3000", 384, 384, 3000, (1, 3), 2, height=1),
    Convolution("transposed 2x2 stride 2 256 > 128, 28, in phases", 256, 512, 28),
    Convolution("transposed 3x3 256 > 256, 14", 256, 256, 14, (3, 3)),
)
"""A transposed convolution is one of all phases of its result, or of the turned weights."""
POOLS = (
    _pool("max pool 3x3 stride 2", 64, 112, Pool2d("max", (3, 3), (2, 2), (1, 1, 1, 1))),
    _pool("max pool 3x3 stride 2", 192, 28, Pool2d("max", (3, 3), (2, 2), ceil_mode=True)),
    _pool("max pool 3x3", 480, 14, Pool2d("max", (3, 3), (1, 1), (1, 1, 1, 1))),
    _pool("max pool 2x2 stride 2", 64, 224, Pool2d("max")),
    _pool("max pool 2x2 stride 2", 512, 28, Pool2d("max")),
    _pool("max pool 5x5", 256, 20, Pool2d("max", (5, 5), (1, 1), (2, 2, 2, 2))),
    _pool("average pool 2x2 stride 2", 128, 56, Pool2d("average")),
    _pool("average pool 3x3", 192, 35, Pool2d("average", (3, 3), (1, 1), (1, 1, 1, 1))),
    _pool("global average pool", 96, 112, Pool2d("average", None)),
    _pool("global average pool", 240, 28, Pool2d("average", None)),
    _pool("global average pool", 672, 14, Pool2d("average", None)),
    _pool("global average pool", 1280, 7, Pool2d("average", None)),
    _pool("average pool to 6x6", 256, 13, Pool2d("average", None, output=(6, 6))),
)


def _norm(name: str, sample: Shape, op: Normalize, parameters: tuple[str, ...]) -> OperatorCase:
    def make(n: int) -> tuple[Operator, Operands]:
        x = samples(n, *sample)
        shape = op.spread(x.shape) if op.dims else x.shape[1:2]
        return op, {"x": x, **{one: numbers(*shape) for one in parameters}}

    def torch(module: Any, given: Mapping[str, Any]) -> Any:
        x, call = given["x"], module.nn.functional
        weight, bias = given.get("weight"), given.get("bias")
        if op.dims is None:
            return call.group_norm(x, op.groups or x.shape[1], weight, bias, op.eps)
        if not op.centred:
            return call.rms_norm(x, x.shape[-op.dims :], weight, op.eps)
        return call.layer_norm(x, x.shape[-op.dims :], weight, bias, op.eps)

    return OperatorCase(f"{name} {' x '.join(map(str, sample))}", make, torch)


BOTH = "weight", "bias"
NORMS = (
    _norm("layer norm", (128, 384), Normalize(1), BOTH),
    _norm("layer norm", (197, 768), Normalize(1), BOTH),
    _norm("layer norm", (3136, 96), Normalize(1), BOTH),
    _norm("layer norm", (784, 192), Normalize(1), BOTH),
    _norm("RMS norm", (128, 2048), Normalize(1, centred=False), ("weight",)),
    _norm("group norm 32", (320, 64, 64), Normalize(groups=32), BOTH),
    _norm("group norm 32", (512, 16, 16), Normalize(groups=32), BOTH),
    _norm("instance norm", (64, 128, 128), Normalize(groups=0), BOTH),
    _norm("instance norm", (256, 32, 32), Normalize(groups=0), ()),
    *(
        OperatorCase(
            f"batch norm in training {c}, {side}",
            lambda n, c=c, side=side: (BatchNormalize(), {"x": samples(n, c, side, side)}),  # type: ignore[misc]
            lambda module, given: module.nn.functional.batch_norm(
                given["x"], None, None, training=True
            ),
            NHWC,
            by_sample=False,
        )
        for c, side in ((256, 14), (960, 7))
    ),
    OperatorCase(
        "channel sums 64, 56",
        lambda n: (ChannelSums(), {"x": samples(n, 64, 56, 56)}),
        lambda module, given: module.stack(
            module.var_mean(given["x"], (0, 2, 3), correction=0)[::-1]
        ),
        NHWC,
        by_sample=False,
    ),
    OperatorCase(
        "local response norm 5 64, 55",
        lambda n: (LocalResponseNorm(5), {"x": samples(n, 64, 55, 55)}),
        lambda module, given: module.nn.functional.local_response_norm(given["x"], 5),
        NHWC,
    ),
)


def _softmax(name: str, sample: Shape, axis: int, layouts: Mapping[str, str]) -> OperatorCase:
    return OperatorCase(
        f"softmax {name} {' x '.join(map(str, sample))}",
        lambda n: (Softmax(axis), {"x": samples(n, *sample)}),
        lambda module, given: module.softmax(given["x"], axis),
        layouts,
    )


SOFTMAXES = (
    _softmax("of rows", (12, 197, 197), -1, {}),
    _softmax("of rows", (12, 64, 64), -1, {}),
    _softmax("of rows", (8, 1024, 1024), -1, {}),
    _softmax("of rows", (1000,), -1, {}),
    _softmax("of rows", (50257,), -1, {}),
    _softmax("of channels", (21, 224, 224), 1, NHWC),
)


def _move(name: str, sample: Shape, op: Move, layouts: Mapping[str, str] | None = None) -> Any:
    def torch(module: Any, given: Mapping[str, Any]) -> Any:
        x = given["x"]
        if isinstance(op, Transpose):
            return x.permute(op.perm).contiguous()
        if isinstance(op, Roll):
            return module.roll(x, op.shifts, op.axes)
        if isinstance(op, Slice):
            parts = [slice(None)] * x.ndim
            for axis, start, end, step in zip(op.axes, op.starts, op.ends, op.steps, strict=True):
                parts[axis] = slice(start, end, step)
            return x[tuple(parts)].contiguous()
        assert isinstance(op, Pad)
        sides = [side for two in zip(op.before, op.after, strict=True) for side in two]
        ends = [
            side for axis in range(x.ndim - 1, 0, -1) for side in sides[2 * axis : 2 * axis + 2]
        ]
        mode = "reflect" if op.edge == "reflect" else "constant"
        return module.nn.functional.pad(x, ends[:4] if mode == "reflect" else ends, mode)

    return OperatorCase(
        f"{name} {' x '.join(map(str, sample))}",
        lambda n: (op, {"x": samples(n, *sample)}),
        torch,
        layouts or {},
    )


def _reorder(source: str, target: str, c: int, side: int) -> OperatorCase:
    return OperatorCase(
        f"{source} to {target} {c}, {side}",
        lambda n: (Reorder(source, target), {"x": samples(n, c, side, side)}),
        layouts={"x": source},
    )


def _concat(name: str, parts: tuple[Shape, ...], axis: int) -> OperatorCase:
    def make(n: int) -> tuple[Operator, Operands]:
        return Concat(axis), {f"x{i}": samples(n, *part) for i, part in enumerate(parts)}

    shown = " + ".join(" x ".join(map(str, part)) for part in parts)
    return OperatorCase(
        f"{name} {shown}", make, lambda module, given: module.cat([*given.values()], axis)
    )


def _lookup(tokens: int, rows: int, width: int) -> OperatorCase:
    def make(n: int) -> tuple[Operator, Operands]:
        index = np.random.default_rng(0).integers(rows, size=(n, tokens), dtype=np.int32)
        return Gather(), {"x": numbers(rows, width), "index": index}

    return OperatorCase(
        f"lookup of {tokens} of {rows} x {width}",
        make,
        lambda module, given: given["x"][given["index"].long()],
        by_sample=False,
    )


def _upsample(c: int, side: int, axis: int) -> OperatorCase:
    """Return linear upsampling of images to twice the size along `axis`."""

    def make(n: int) -> tuple[Operator, Operands]:
        sizes = [side, side]
        sizes[0] *= 2 if axis == 3 else 1  # the other axis was first
        at = np.clip((np.arange(2 * side) + 0.5) / 2 - 0.5, 0, side - 1)
        low = np.minimum(np.floor(at), side - 2)
        index = np.stack((low, low + 1)).astype(np.int32)
        weight = np.stack((low + 1 - at, at - low)).astype(np.float32)
        return Resample(axis), {"x": samples(n, c, *sizes), "index": index, "weight": weight}

    def torch(module: Any, given: Mapping[str, Any]) -> Any:
        scale = tuple(2.0 if one == axis else 1.0 for one in (2, 3))
        return module.nn.functional.interpolate(given["x"], scale_factor=scale, mode="bilinear")

    return OperatorCase(f"linear upsampling along {axis} {c}, {side}", make, torch)


def _repeat(c: int, side: int, axis: int) -> OperatorCase:
    """Return nearest upsampling of images to twice the size along `axis`."""

    def make(n: int) -> tuple[Operator, Operands]:
        sizes = [side, side]
        sizes[0] *= 2 if axis == 3 else 1
        index = np.arange(2 * side, dtype=np.int32) // 2
        return Gather(axis), {"x": samples(n, c, *sizes), "index": index}

    return OperatorCase(
        f"nearest upsampling along {axis} {c}, {side}",
        make,
        lambda module, given: given["x"].repeat_interleave(2, axis),
    )


def _edges(before: int, after: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (0, 0, before, before), (0, 0, after, after)


MOVES = (
    _move("transposed", (384, 1500), Transpose((0, 2, 1))),
    _move("transposed", (768, 196), Transpose((0, 2, 1))),
    _move("transposed", (96, 3136), Transpose((0, 2, 1))),
    _move("heads first", (197, 12, 64), Transpose((0, 2, 1, 3))),
    _move("heads last", (12, 64, 197), Transpose((0, 3, 1, 2))),
    _move("channels shuffled", (2, 58, 28, 28), Transpose((0, 2, 1, 3, 4))),
    _move("pixels shuffled", (64, 2, 2, 64, 64), Transpose((0, 1, 4, 2, 5, 3))),
    _move("windows", (8, 7, 8, 7, 96), Transpose((0, 1, 3, 2, 4, 5))),
    _move("rolled", (56, 56, 96), Roll((-3, -3), (1, 2))),
    _move("every second row", (56, 56, 96), Slice((0, 1), (56, 56), (1, 2), (2, 2))),
    _move("half of the channels", (116, 28, 28), Slice((58,), (116,), (1,), (1,))),
    _move("padded", (64, 56, 56), Pad(*_edges(1, 1))),
    _move("padded, reflected", (64, 128, 128), Pad(*_edges(1, 1), edge="reflect")),
    _move("padded, reflected", (64, 56, 56), Pad(*_edges(1, 1), edge="reflect"), NHWC),
    _concat("joined", ((64, 56, 56), (32, 56, 56)), 1),
    _concat("joined", ((1, 768), (196, 768)), 1),
    _concat("joined", ((58, 28, 28), (58, 28, 28)), 1),
    _lookup(128, 30522, 384),
    _lookup(64, 32000, 768),
    _repeat(256, 20, 2),
    _repeat(256, 20, 3),
    _upsample(64, 56, 2),
    _upsample(64, 56, 3),
    _reorder("R", "nhwC4c", 3, 224),
    _reorder("R", "nhwC4c", 64, 56),
    _reorder("nhwC4c", "R", 64, 56),
    _reorder("nhwC4c", "R", 768, 14),
)  # fmt: skip


def _attention(network: str) -> OperatorCase:
    def make(n: int) -> tuple[Operator, Operands]:
        return attention.case(f"{network}_{n}")

    def torch(module: Any, given: Mapping[str, Any]) -> Any:
        k, v = given["k"][:, :, 1], given["v"][:, :, 2]
        q = given["q"][:, :, 0] if given["q"].ndim == 5 else given["q"]
        split = (one.transpose(1, 2) for one in (q, k, v))
        call = module.nn.functional.scaled_dot_product_attention
        made = call(*split, is_causal="mask" in given)
        return made.transpose(1, 2).contiguous()

    return OperatorCase(f"attention of {network}", make, None if "swin" in network else torch)


ATTENTIONS = tuple(map(_attention, (*attention.ENCODERS, *attention.SWIN)))
CASES = (*(one.case for one in CONVOLUTIONS), *POOLS, *NORMS, *SOFTMAXES, *MOVES, *ATTENTIONS)
