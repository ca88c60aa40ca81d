"""Small awkward problems for every op that has kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from glnn.graph.epilogue import BIASED, Epilogue
from glnn.graph.expression import Arg, call
from glnn.graph.operator import Operands, Operator
from glnn.graph.operators import (
    Concat,
    Conv2d,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    CumSum,
    LocalResponseNorm,
    Matmul,
    Normalize,
    Perceptron,
    Pointwise,
    Pool2d,
    Pool2dGradient,
    PooledConv2d,
    Recurrence,
    RecurrentStep,
    Reduce,
    Resample,
    SeparableConv2d,
    Sobel,
    Softmax,
    Subsample,
)
from glnn.graph.operators.attention import Attention, Walk
from glnn.graph.operators.gather import Gather
from glnn.graph.operators.im2row import Im2row
from glnn.graph.operators.matmul_parts import MatmulParts
from glnn.graph.operators.matmul_sum import MatmulSum
from glnn.graph.operators.move import Transpose
from glnn.graph.operators.pack import Pack
from glnn.graph.operators.pad import Pad
from glnn.graph.operators.reorder import Reorder
from glnn.graph.operators.scatter import ScatterElements, ScatterND
from glnn.graph.operators.shift_add import ShiftAdd
from glnn.graph.operators.winograd_input import WinogradInput
from glnn.graph.operators.winograd_output import WinogradOutput
from glnn.graph.operators.zero import Zero
from glnn.graph.prologue import Prologue
from glnn.types import DType, Shape, TensorType

RELU, TANH = (Epilogue(call(name, Arg(0))) for name in ("relu", "tanh"))
SUMMED = Epilogue(call("add", Arg(0), Arg(1)), ("full",))
BIASED_TANH = BIASED.then(TANH)

# Queries, keys and values of three heads in rows, as one product has made them; and each by itself.
ATTENTION = Attention(2, 3, 37, 37, 11, 11, tuple(Walk(33 * i, 3663, 11, 99) for i in range(3)))
APART = Walk(0, 1656, 8, 24), Walk(0, 1608, 536, 8), Walk(0, 2412, 804, 12)
ROWS_ATTENTION = Attention(2, 3, 69, 67, 8, 12, APART, 0.3, (2, 0, 1))

INDEX = TensorType((45,), DType.int32)


def _given(**operands: TensorType | Shape) -> Operands:
    """What has integers among its operands."""
    return operands


Small = tuple[Operator, Operands] | tuple[Operator, Operands, Epilogue]
"""An operator, its operands' shapes (types where not all are float32), perhaps an epilogue."""


def _layers(widths: tuple[int, ...], functions: tuple[str, ...], *x: int) -> Small:
    op = Perceptron(widths, tuple(call(name, Arg(0)) for name in functions))
    return op, {"x": x, **op.sides(x[1])}


PROBLEMS: Mapping[str, Sequence[Small]] = {
    "matmul": [
        (Matmul(), {"x": (67, 37), "weight": (131, 37), "e1": (131,)}, BIASED_TANH),
        (Matmul(), {"x": (3 * 67, 37), "weight": (3, 131, 37)}),
        (Matmul(), {"x": (131 * 7, 69), "weight": (131, 9, 69), "e1": (9,)}, BIASED_TANH),
    ],
    "matmul_parts": [
        (MatmulParts(3), {"x": (67, 37), "weight": (131, 37)}),
        (MatmulParts(9, "columns"), {"x": (67, 36), "weight": (131, 36)}),
        (MatmulParts(37, "transposed"), {"x": (67, 37), "weight": (131, 37)}),
    ],
    "matmul_sum": [
        (MatmulSum(3), {"x": (3 * 67, 131), "e1": (131,)}, BIASED_TANH),
        (MatmulSum(9, "columns"), {"x": (1, 131, 67, 9), "e1": (67, 131)}, SUMMED),
    ],
    "attention": [
        (ATTENTION, {"q": (2, 37, 99), "k": (2, 37, 99), "v": (2, 37, 99)}),
        (
            replace(ATTENTION, at=(*ATTENTION.at, Walk(0, 0, 37 * 37, 37)), zeros=True),
            {"q": (2, 37, 99), "k": (2, 37, 99), "v": (2, 37, 99), "mask": (3, 37, 37)},
        ),
        (ROWS_ATTENTION, {"q": (2, 69, 24), "k": (2, 3, 67, 8), "v": (2, 3, 67, 12)}),
    ],
    "pointwise": [
        (Pointwise(call("add", Arg(0), Arg(1))), {"x0": (37, 131), "x1": (131,)}),
        (Pointwise(call("sigmoid", Arg(0))), {"x0": (37, 131)}),
        (Pointwise(call("mul", Arg(0), Arg(1))), {"x0": (2, 37, 11, 9), "x1": (37, 1, 1)}),
    ],
    "pack": [(Pack(), {"x": TensorType((67, 37), DType.int8)})],
    "sobel": [(Sobel(), {"x": TensorType((73, 131), DType.uint8)})],
    "softmax": [(Softmax(), {"x": (37, 131)})],
    "reduce": [
        (Reduce("sum", (1,)), {"x0": (37, 131)}),
        (Reduce("mean", (0,), True), {"x0": (37, 131)}),
        (Reduce("max", (0, 2)), {"x0": (5, 37, 9)}),
        (Reduce("sum", (1,)), {"x0": (3, 1031)}),
        (Reduce("sum", (0,)), {"x0": (1031, 7)}),
    ],
    "resample": [
        (
            Resample(1),
            _given(x=(3, 37, 11), index=TensorType((3, 131), DType.int32), weight=(3, 131)),
        ),
        (
            Resample(0),
            _given(x=(37, 12), index=TensorType((3, 131), DType.int32), weight=(3, 131)),
        ),
    ],
    "normalize": [
        (Normalize(dims=1), {"x": (37, 131), "weight": (131,), "bias": (131,)}),
        (Normalize(groups=3), {"x": (2, 6, 11, 9), "weight": (6,), "bias": (6,)}),
    ],
    "cum_sum": [
        (CumSum(1), {"x": (37, 131)}),
        (CumSum(0, exclusive=True, reverse=True), {"x": (37, 131)}),
    ],
    "recurrence": [
        (
            Recurrence((call("tanh", call("add", Arg(0), Arg(1))), Arg(2)), 1, 35),
            {"x": (2, 3, 5, 1, 36), "weight": (2, 1, 36, 36), "state": (2, 5, 9, 2, 4)},
        ),
        (
            Recurrence((call("tanh", call("add", Arg(0), Arg(1))),), 0, 35, 3),
            {"x": (1, 4, 5, 1, 36), "weight": (5, 1, 36, 36), "state": (3, 5, 9, 2, 4)},
        ),
    ],
    "recurrent_step": [
        (
            RecurrentStep((call("tanh", call("add", Arg(0), Arg(1))), Arg(2)), 1, 1, 35),
            {"x": (2, 3, 5, 1, 36), "weight": (2, 1, 36, 36), "state": (2, 5, 9, 2, 4)},
        ),
    ],
    "perceptron": [
        _layers((9, 131), ("relu", "sigmoid"), 3, 37, 1, 1),
        _layers((1031, 3), ("abs", "neg"), 2, 131),
        _layers((129, 7, 37), ("relu", "tanh", "neg"), 3, 131),
    ],
    "pooled_conv2d": [
        (
            PooledConv2d((2, 1), (1, 1, 1, 1)),
            {"x": (2, 5, 11, 9), "weight": (7, 5, 3, 3), "e1": (7,)},
            BIASED,
        ),
        (PooledConv2d(mode="average"), {"x": (2, 17, 13, 11), "weight": (37, 17, 3, 3)}),
    ],
    "pool2d": [
        (Pool2d("max", (3, 2), (2, 1)), {"x": (2, 5, 11, 9)}),
        (Pool2d("average", None), {"x": (2, 37, 11, 9)}),
    ],
    "pool2d_gradient": [
        (
            Pool2dGradient(Pool2d("max", (3, 2), (2, 1)), (11, 9)),
            {
                **{"dy": (2, 5, 5, 8), "x": (2, 5, 11, 9), "y": (2, 5, 5, 8)},
                **{"e1": (2, 5, 11, 9)},
            },
            SUMMED.then(RELU),
        ),
        (Pool2dGradient(Pool2d("average", None), (11, 9)), {"dy": (2, 37, 1, 1)}),
    ],
    "conv2d_input_gradient": [
        (
            Conv2dInputGradient((11, 9), (2, 1), (1, 1, 1, 1), groups=2),
            {"dy": (2, 8, 6, 9), "weight": (8, 3, 3, 3), "e1": (2, 6, 11, 9)},
            SUMMED.then(RELU),
        ),
        (
            Conv2dInputGradient((7, 9), (2, 1), (1, 0, 0, 1)),
            {"dy": (2, 37, 3, 9), "weight": (37, 19, 3, 2), "e1": (2, 19, 7, 9)},
            SUMMED.then(RELU),
        ),
    ],
    "conv2d_weight_gradient": [
        (
            Conv2dWeightGradient((3, 3), (2, 1), (1, 1, 1, 1), groups=2),
            {"x": (2, 6, 11, 9), "dy": (2, 8, 6, 9)},
        ),
        (  # two tiles of output channels and more of the others
            Conv2dWeightGradient((3, 2), padding=(1, 0, 0, 1), parts=3),
            {"x": (2, 37, 7, 9), "dy": (2, 67, 6, 9)},
        ),
        (  # in parts
            Conv2dWeightGradient((1, 3), (2, 1)),
            {"x": (3, 19, 33, 5), "dy": (3, 17, 17, 3)},
        ),
    ],
    "subsample": [
        (
            Subsample((2, 3)),
            {"x": (2, 37, 11, 9), "weight": (37,), "bias": (37,)},
            TANH,
        )
    ],
    "local_response_norm": [(LocalResponseNorm(5, 0.5), {"x": (2, 37, 11, 9)})],
    "concat": [
        (Concat(), {"x0": (2, 37, 11, 9), "x1": (2, 6, 11, 9)}),
        (Concat(), {"x0": (2, 36, 11, 9), "x1": (2, 8, 11, 9), "x2": (2, 4, 11, 9)}),
        (Concat(0), {"x0": (4, 3), "x1": (1, 3), "x2": (7, 3), "x3": (4, 3)}),
    ],
    "reorder": [
        (Reorder("R", "C 4 2 C"), {"x": (37, 131)}),
        (Reorder("C", "R4"), {"x": (37, 131)}),
        (Reorder("R", "nhwC4c"), {"x": (2, 37, 11, 9)}),
        (Reorder("nhwC4c", "R"), {"x": (2, 37, 11, 9)}),
        (Reorder("R", "nChw4c"), {"x": (2, 37, 11, 9)}),
        (Reorder("nChw4c", "R"), {"x": (2, 37, 11, 9)}),
        (Reorder("nhwC4c", "nChw4c"), {"x": (2, 37, 11, 9)}),
    ],
    "conv2d": [
        (
            Conv2d((2, 1), (1, 1, 1, 1)),
            {"x": (2, 5, 11, 9), "weight": (7, 5, 3, 3), "e1": (7,)},
            BIASED,
        ),
        (Conv2d(groups=2), {"x": (2, 6, 11, 9), "weight": (8, 3, 3, 3), "e1": (8,)}, BIASED),
        (  # channels last, a whole tile of pixels and another of output channels begun
            Conv2d(padding=(1, 0, 0, 1)),
            {"x": (2, 7, 11, 9), "weight": (33, 7, 3, 3), "e1": (2, 33, 10, 8)},
            SUMMED.then(RELU),
        ),
        (
            Conv2d((1, 2), (1, 1, 1, 1), groups=17),
            {"x": (2, 17, 11, 9), "weight": (17, 1, 3, 3), "e1": (17,)},
            BIASED,
        ),
        (  # groups of whole quads
            Conv2d((2, 1), (1, 0, 0, 1), groups=3),
            {"x": (2, 24, 11, 9), "weight": (12, 8, 3, 3), "e1": (12,)},
            BIASED,
        ),
    ],
    "separable_conv2d": [
        (
            SeparableConv2d((2, 1), (1, 1, 0, 1), prologue=Prologue(RELU.expr)),
            {
                **{"x": (2, 37, 11, 9), "depthwise": (37, 1, 3, 3), "weight": (35, 37, 1, 1)},
                **{"e1": (2, 35, 5, 9)},
            },
            SUMMED,
        ),
        (  # more channels than shared memory holds at a time
            SeparableConv2d(),
            {"x": (1, 1031, 3, 5), "depthwise": (1031, 1, 3, 3), "weight": (7, 1031, 1, 1)},
        ),
    ],
    "im2row": [
        (Im2row((3, 2), (2, 1), (1, 0, 0, 1)), {"x": (2, 7, 11, 9)}),
        (Im2row((1, 1)), {"x": (1, 37, 5, 9), "into": (45, 37)}),
    ],
    "gather": [
        (Gather(1), _given(x=(5, 37, 9), index=INDEX)),
        (Gather(), _given(x=(37, 64), index=INDEX)),
    ],
    "scatter": [
        (ScatterElements(0, "add"), _given(x=(700,), index=INDEX, updates=(45,))),
        (
            ScatterND(),
            _given(x=(37, 19), index=TensorType((45, 1), DType.int32), updates=(45, 19)),
        ),
    ],
    "move": [
        (Pad((0, 0, 1, 0), (0, 0, 2, 3)), {"x": (2, 37, 11, 9)}),
        (Transpose((0, 2, 1)), {"x": (2, 67, 45)}),
    ],
    "zero": [(Zero((67, 131)), {}), (Zero((67, 131), "R 2 4 R"), {})],
    "shift_add": [
        (
            ShiftAdd((2, 11, 9), (3, 2), (1, 0, 0, 1)),
            {"x": (2 * 11 * 9, 6 * 37), "e1": (37,)},
            BIASED_TANH,
        )
    ],
    "winograd_input": [
        (WinogradInput(tile, (1, 0, 0, 1)), {"x": (2, 37, 11, 9)}) for tile in (2, 4)
    ],
    "winograd_output": [
        (
            WinogradOutput((2, 7, 6), tile),
            {"x": (rows, 37), "e1": (37,), "e2": (2, 37, 7, 6)},
            BIASED.then(SUMMED).then(TANH),
        )
        for tile, rows in ((2, 16 * 2 * 4 * 3), (4, 36 * 2 * 2 * 2))
    ],
}
