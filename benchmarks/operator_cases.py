"""Operators of networks beside convolutions and products: sizes, operands, and PyTorch's call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import attention
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
DIFFERENT = 2  # samples of random numbers: further ones are these again
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

    def first_sample(self, operands: Operands) -> tuple[Operator, Operands]:
        """Return the operator of the first sample and its operands, or of all samples where
        results depend on others'.
        """
        many = next(iter(operands.values())).shape[0]
        if not self.by_sample:
            return self.make(many)[0], operands
        op, one = self.make(1)
        same = {name: operands[name].shape == array.shape for name, array in one.items()}
        return op, {name: a if same[name] else a[:1] for name, a in operands.items()}


def numbers(samples: int, *sample: int) -> Array:
    """Return random numbers (samples, *sample), of which the first DIFFERENT differ."""
    generator = np.random.default_rng(sample)
    few = generator.standard_normal((min(samples, DIFFERENT), *sample), dtype=np.float32)
    return few[np.arange(samples) % len(few)]


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
        f"{name} {c}, {side}", lambda n: (op, {"x": numbers(n, c, side, side)}), torch, NHWC
    )


def _conv(
    name: str, c: int, o: int, size: Pair, kernel: Pair, stride: int = 1, groups: int = 1
) -> OperatorCase:
    padding = kernel[0] // 2, kernel[1] // 2
    op = Conv2d((stride if size[0] > 1 else 1, stride), (*padding, *padding), groups=groups)

    def make(n: int) -> tuple[Operator, Operands]:
        return op, {"x": numbers(n, c, *size), "weight": numbers(o, c // groups, *kernel)}

    return OperatorCase(
        name,
        make,
        lambda torch, given: torch.conv2d(
            given["x"], given["weight"], None, op.stride, padding, 1, groups
        ),
        NHWC,
    )


def _depthwise(size: int, c: int, side: int, stride: int = 1) -> OperatorCase:
    far = f" stride {stride}" if stride > 1 else ""
    name = f"depthwise {size}x{size}{far} {c}, {side}"
    return _conv(name, c, c, (side, side), (size, size), stride, c)


CONVOLUTIONS = (
    _depthwise(3, 32, 112),
    _depthwise(3, 144, 56, 2),
    _depthwise(3, 384, 14),
    _depthwise(3, 576, 14, 2),
    _depthwise(5, 672, 14),
    _depthwise(5, 1152, 7),
    _depthwise(7, 192, 28),
    _depthwise(7, 384, 14),
    _depthwise(7, 768, 7),
    _conv("1x3 80 > 384, 1 x 3000", 80, 384, (1, 3000), (1, 3)),
    _conv("1x3 stride 2 384 > 384, 1 x 3000", 384, 384, (1, 3000), (1, 3), 2),
)
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
        x = numbers(n, *sample)
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
            lambda n, c=c, side=side: (BatchNormalize(), {"x": numbers(n, c, side, side)}),  # type: ignore[misc]
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
        lambda n: (ChannelSums(), {"x": numbers(n, 64, 56, 56)}),
        lambda module, given: module.stack(
            module.var_mean(given["x"], (0, 2, 3), correction=0)[::-1]
        ),
        NHWC,
        by_sample=False,
    ),
    OperatorCase(
        "local response norm 5 64, 55",
        lambda n: (LocalResponseNorm(5), {"x": numbers(n, 64, 55, 55)}),
        lambda module, given: module.nn.functional.local_response_norm(given["x"], 5),
        NHWC,
    ),
)


def _softmax(name: str, sample: Shape, axis: int, layouts: Mapping[str, str]) -> OperatorCase:
    return OperatorCase(
        f"softmax {name} {' x '.join(map(str, sample))}",
        lambda n: (Softmax(axis), {"x": numbers(n, *sample)}),
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
        lambda n: (op, {"x": numbers(n, *sample)}),
        torch,
        layouts or {},
    )


def _reorder(source: str, target: str, c: int, side: int) -> OperatorCase:
    return OperatorCase(
        f"{source} to {target} {c}, {side}",
        lambda n: (Reorder(source, target), {"x": numbers(n, c, side, side)}),
        layouts={"x": source},
    )


def _concat(name: str, parts: tuple[Shape, ...], axis: int) -> OperatorCase:
    def make(n: int) -> tuple[Operator, Operands]:
        return Concat(axis), {f"x{i}": numbers(n, *part) for i, part in enumerate(parts)}

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
        return Resample(axis), {"x": numbers(n, c, *sizes), "index": index, "weight": weight}

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
        return Gather(axis), {"x": numbers(n, c, *sizes), "index": index}

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
CASES = (*CONVOLUTIONS, *POOLS, *NORMS, *SOFTMAXES, *MOVES, *ATTENTIONS)
