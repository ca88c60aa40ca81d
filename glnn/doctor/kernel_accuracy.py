"""The accuracy of every kernel that a backend may choose, against NumPy in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from glnn.backends.gl import GlBackend
from glnn.compiler import evaluate
from glnn.core.cached_property import cached_property
from glnn.core.layout.layout import PACKED
from glnn.core.types import Array, DType, Shape, TensorType
from glnn.errors import (
    DeviceError,
    LimitError,
    ShaderError,
    ShapeError,
    UnsupportedOpError,
    first_line,
    raised,
)
from glnn.graph.epilogue import BIASED, Epilogue, Prologue
from glnn.graph.expression import Arg, call
from glnn.graph.operator import Operands, Operator, Shapes
from glnn.graph.operators import (
    AttentionParts,
    AttentionSum,
    BatchNormalize,
    BatchNormalizeGradient,
    CacheAppend,
    CachedAttention,
    CacheUpdate,
    Concat,
    Conv2d,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    CumSum,
    Fourier,
    LocalResponseNorm,
    Matmul,
    MergeTopK,
    Normalize,
    NormalizeGradient,
    NormedMatmul,
    Perceptron,
    Pointwise,
    Pool2d,
    Pool2dGradient,
    PooledConv2d,
    QuantizedMatmul,
    QuantizedRows,
    Recurrence,
    RecurrentStep,
    Reduce,
    Resample,
    Rotary,
    Sample,
    SeparableConv2d,
    Sobel,
    Softmax,
    SoftmaxGradient,
    Subsample,
    TopK,
)
from glnn.graph.operators.attention import Attention, PartialAttention, StridedView, Windows
from glnn.graph.operators.channel_sums import ChannelSums, MergeChannelSums
from glnn.graph.operators.conv2d_lowering import Im2row, ShiftAdd, Zero
from glnn.graph.operators.gather import Gather
from glnn.graph.operators.matmul import MatmulParts, MatmulSum
from glnn.graph.operators.move import Pad, Transpose
from glnn.graph.operators.reorder import Pack, Reorder
from glnn.graph.operators.scatter import ScatterElements, ScatterND
from glnn.graph.operators.winograd import WinogradInput, WinogradOutput
from glnn.graph.quantization import FORMATS
from glnn.kernels.capability_check import fitted
from glnn.kernels.codegen.generators import GENERATORS
from glnn.kernels.kernel import Kernel
from glnn.kernels.library import declared
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.selector import why_not
from glnn.kernels.verdicts import (
    ALWAYS,
    Verdict,
    Verdicts,
    allowed,
    kernel_key,
    program_key,
    sizes_key,
    verdict_key,
)
from glnn.validation.comparison import relative_error
from glnn.validation.examination import Fault, Trial, examine, wrong_again

RELU, TANH = (Epilogue(call(name, Arg(0))) for name in ("relu", "tanh"))
SUMMED = Epilogue(call("add", Arg(0), Arg(1)), ("full",))
BIASED_TANH = BIASED.then(TANH)

# Queries, keys and values of three heads in rows, as one product has made them; and each by itself.
JOINED = tuple(StridedView(33 * i, 37 * 99, 11, 99) for i in range(3))
MASKED = *JOINED, StridedView(0, 0, 37 * 37, 37)
MASKED_ATTENTION = Attention(2, 3, 37, 37, 11, 11, MASKED, zeros=True)
APART = StridedView(0, 1656, 8, 24), StridedView(0, 1608, 536, 8), StridedView(0, 2412, 804, 12)
IMAGES = tuple(StridedView(33 * i, 120 * 99, 11, 99) for i in range(3))
WINDOWED_ATTENTION = Attention(24, 3, 20, 20, 11, 11, IMAGES, windows=Windows(2, 3, 5, 4, 2, 3))
ROWS_ATTENTION = Attention(2, 3, 69, 67, 8, 12, APART, 0.3, (2, 0, 1))
ROWS: Operands = {"q": (2, 69, 24), "k": (2, 3, 67, 8), "v": (2, 3, 67, 12)}
INDEX, TOKENS, PLACES = (TensorType(shape, DType.int32) for shape in ((45,), (5,), (3, 131)))
CENTRED = NormedMatmul(1e-5, centred=True), {"x": (67, 131), "weight": (67, 131)}
ATTENTION_PARTS = AttentionParts(6, 2, 12, 12, 0.3, keys=5)
ROTARY_OPERANDS: Operands = {"places": TOKENS, "rotary": (12, 8)}
OWN_KEYS: Operands = {"x": (5, 120), "cache": (24, 48), **ROTARY_OPERANDS}


def _operands(**operands: TensorType | Shape) -> Operands:
    """Make operands, some of which are integers."""
    return operands


def _packed(format: str, n: int, k: int) -> TensorType:
    """Return the type of a packed weight."""
    return TensorType((FORMATS[format].words(n, k),), DType.int32)


Problem = tuple[Operator, Operands] | tuple[Operator, Operands, Epilogue]
"""An operator, its operands' shapes (types where not all are float32), perhaps an epilogue."""


def _layers(widths: tuple[int, ...], functions: tuple[str, ...], *x: int) -> Problem:
    op = Perceptron(widths, tuple(call(name, Arg(0)) for name in functions))
    return op, {"x": x, **op.sides(x[1])}


def _quantized(m: int, format: str, n: int, k: int, eps: float = 0.0, gate: str = "") -> Problem:
    op = QuantizedMatmul(format, n, k, eps, gate)
    operands = _operands(x=(m, k), weight=_packed(format, op.rows, k))
    return op, {**operands, "norm": (k,)} if eps else operands


def _normed(m: int, n: int, k: int, gate: str = "") -> Problem:
    operands = {"x": (m, k), "weight": (n, k), "norm": (k,)}
    return NormedMatmul(1e-5, gate), {**operands, "up": (n, k)} if gate else operands


PROBLEMS: Mapping[str, Sequence[Problem]] = {
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
        (WINDOWED_ATTENTION, dict.fromkeys("qkv", (4, 120, 99))),
        (MASKED_ATTENTION, dict.fromkeys("qkv", (2, 37, 99)) | {"mask": (3, 37, 37)}),
        (ROWS_ATTENTION, ROWS),
    ],
    "pointwise": [
        (Pointwise(call("add", Arg(0), Arg(1))), {"x0": (37, 131), "x1": (131,)}),
        (Pointwise(call("sigmoid", Arg(0))), {"x0": (37, 131)}),
        (Pointwise(call("mul", Arg(0), Arg(1))), {"x0": (2, 37, 11, 9), "x1": (37, 1, 1)}),
    ],
    "pack": [(Pack(), {"x": TensorType((67, 37), DType.int8)})],
    "sobel": [(Sobel(), {"x": TensorType((73, 131), DType.uint8)})],
    "softmax": [(Softmax(), {"x": (37, 131)}), (Softmax(1), {"x": (2, 19, 11, 9)})],
    "softmax_gradient": [(SoftmaxGradient(), dict.fromkeys(("dy", "x"), (37, 132)))],
    "reduce": [
        (Reduce("sum", (1,)), {"x0": (37, 131)}),
        (Reduce("mean", (0,), True), {"x0": (37, 131)}),
        (Reduce("max", (0, 2)), {"x0": (5, 37, 9)}),
        (Reduce("sum", (1,)), {"x0": (3, 1031)}),
        (Reduce("sum", (0,)), {"x0": (1031, 7)}),
    ],
    "resample": [
        (Resample(1), _operands(x=(3, 37, 11), index=PLACES, weight=(3, 131))),
        (Resample(0), _operands(x=(37, 12), index=PLACES, weight=(3, 131))),
    ],
    "normalize": [
        (Normalize(dims=1), {"x": (37, 131), "weight": (131,), "bias": (131,)}),
        (Normalize(groups=3), {"x": (2, 6, 14, 11), "weight": (6,), "bias": (6,)}),
    ],
    "normalize_gradient": [(NormalizeGradient(), dict.fromkeys(("dy", "x"), (37, 132)))],
    "cum_sum": [
        (CumSum(1), {"x": (37, 131)}),
        (CumSum(0, exclusive=True, reverse=True), {"x": (37, 131)}),
    ],
    "top_k": [
        (TopK(19), {"x": (7, 1031)}),
        (TopK(7, largest=False), {"x": (5, 131)}),
        (TopK(70), _operands(x=(5, 1031), places=TensorType((5, 517), DType.int32))),
    ],
    "merge_top_k": [
        (MergeTopK(2, True, 1), _operands(x=(7, 131), places=TensorType((7, 131), DType.int32))),
        (MergeTopK(19, False, 1), {"x": (7, 131)}),
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
        (Pool2d("max", (3, 2), (1, 1), (1, 1, 1, 0)), {"x": (2, 5, 11, 9)}),
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
        (Conv2dInputGradient((8, 9), groups=37), {"dy": (2, 37, 6, 7), "weight": (37, 1, 3, 3)}),
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
        (Conv2dWeightGradient((3, 3), groups=37), {"x": (2, 37, 8, 9), "dy": (2, 37, 6, 7)}),
        (  # two tiles of output channels and more of the others
            Conv2dWeightGradient((3, 2), padding=(1, 0, 0, 1), parts=3),
            {"x": (2, 37, 7, 9), "dy": (2, 67, 6, 9)},
        ),
        (Conv2dWeightGradient((1, 3), (2, 1)), {"x": (3, 19, 33, 5), "dy": (3, 17, 17, 3)}),
    ],
    "subsample": [(Subsample((2, 3)), {"x": (2, 37, 11, 9), "weight": (37,), "bias": (37,)}, TANH)],
    "local_response_norm": [(LocalResponseNorm(5, 0.5), {"x": (2, 37, 11, 9)})],
    "batch_normalize": [(BatchNormalize(), {"x": (2, 37, 11, 9)}, TANH)],
    "batch_normalize_gradient": [
        (
            BatchNormalizeGradient(),
            {"dy": (3, 70, 7, 5), "x": (3, 70, 7, 5), "mean": (70,), "variance": (70,)},
            TANH,
        ),
    ],
    "channel_sums": [
        (ChannelSums(), {"x": (2, 37, 11, 9)}),
        (ChannelSums(), {"x": (3, 70, 7, 5), "dy": (3, 70, 7, 5), "mean": (70,)}),
        (ChannelSums(), dict.fromkeys(("x", "dy"), (131, 70))),
    ],
    "merge_channel_sums": [(MergeChannelSums(kind), {"x": (19, 2, 128)}) for kind in (True, False)],
    "fourier": [(Fourier("real", 37, 19), {"x": (67, 37), "factors": (38, 37)})],
    "concat": [
        (Concat(), {"x0": (2, 37, 11, 9), "x1": (2, 6, 11, 9)}),
        (Concat(), {"x0": (2, 36, 11, 9), "x1": (2, 8, 11, 9), "x2": (2, 4, 11, 9)}),
        (Concat(0), {"x0": (4, 3), "x1": (1, 3), "x2": (7, 3), "x3": (4, 3)}),
    ],
    "reorder": [
        *((Reorder(*two), {"x": (37, 131)}) for two in (("R", "C 4 2 C"), ("C", "R4"))),
        *((Reorder("R", layout), {"x": (2, 37, 11, 9)}) for layout in ("nhwC4c", "nChw4c")),
        *((Reorder(layout, "R"), {"x": (2, 37, 11, 9)}) for layout in ("nhwC4c", "nChw4c")),
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
        *(
            (Conv2d(steps, (1, 1, 1, 1), groups=17), {"x": (2, 17, 11, 9), "weight": (17, 1, 3, 3)})
            for steps in ((1, 2), (1, 1))
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
    "normed_matmul": [_normed(1, 67, 131), _normed(3, 67, 96, "silu"), CENTRED],
    "quantized_matmul": [
        _quantized(5, "q4_1", 67, 96),
        _quantized(1, "q4_k", 67, 512),
        _quantized(67, "q8_0", 37, 64),
        _quantized(5, "uint4_32", 67, 96),
        _quantized(5, "q4_0", 67, 96, 1e-5),
        _quantized(5, "q4_0", 67, 96, gate="silu"),
        _quantized(5, "q4_0", 67, 96, 1e-5, "silu"),
    ],
    "quantized_rows": [
        (QuantizedRows("q6_k", 37, 256), _operands(index=TOKENS, weight=_packed("q6_k", 37, 256))),
    ],
    "rotary": [(Rotary(3, 10, 12, 2), _operands(x=(5, 37), places=TOKENS, rotary=(12, 8)))],
    "cache_append": [
        (CacheAppend(3, 10, 1, 7), {"x": (2, 37), "past": (2, 3, 129, 10)}),
        (CacheAppend(3, 10, 12), _operands(x=(5, 37), past=(5, 3, 7, 10), **ROTARY_OPERANDS)),
    ],
    "cache_update": [
        (CacheUpdate(3, 10, 12, 2, 35), _operands(x=(5, 67), cache=(24, 60), **ROTARY_OPERANDS))
    ],
    "sample": [(Sample(), {"x": (5, 637), "rules": (5, 4), "random": (5,)})],
    "cached_attention": [
        (
            CachedAttention(6, 2, 12, 12, 0.3),
            _operands(x=(5, 72), cache=(24, 48), **ROTARY_OPERANDS),
        ),
        (CachedAttention(6, 2, 12, 12, 0.3), _operands(x=(5, 72), cache=(24, 48), places=TOKENS)),
        (CachedAttention(6, 2, 12, 12, 0.3, keys_start=72, values_start=96), OWN_KEYS),
    ],
    "attention_parts": [
        (ATTENTION_PARTS, _operands(x=(5, 72), cache=(24, 48), **ROTARY_OPERANDS)),
        (ATTENTION_PARTS, _operands(x=(5, 72), cache=(24, 48), places=TOKENS)),
        (replace(ATTENTION_PARTS, keys_start=72, values_start=96), OWN_KEYS),
    ],
    "attention_sum": [(AttentionSum(3, 12, 5), {"x": (7, 240)})],
    "partial_attention": [(PartialAttention(2, 3, 69, 67, 8, 12, APART, 0.3, parts=3), ROWS)],
    "gather": [
        (Gather(1), _operands(x=(5, 37, 9), index=INDEX)),
        (Gather(), _operands(x=(37, 64), index=INDEX)),
    ],
    "scatter": [
        (ScatterElements(0, "add"), _operands(x=(700,), index=INDEX, updates=(45,))),
        (
            ScatterND(),
            _operands(x=(37, 19), index=TensorType((45, 1), DType.int32), updates=(45, 19)),
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
    "winograd_input": [(WinogradInput(n, (1, 0, 0, 1)), {"x": (2, 37, 11, 9)}) for n in (2, 4)],
    "winograd_output": [
        (
            WinogradOutput((2, 7, 6), tile),
            {"x": (rows, 37), "e1": (37,), "e2": (2, 37, 7, 6)},
            BIASED.then(SUMMED).then(TANH),
        )
        for tile, rows in ((2, 16 * 2 * 4 * 3), (4, 36 * 2 * 2 * 2))
    ],
}


COUNTS, QUICK_COUNTS = (1, 3, 7, 127, 129), (1, 3, 7)
"""Samples, and terms of a sum, that are tested; the second with --quick."""
LARGE, QUICK_LARGE = 1 << 17, 1 << 15
"""Elements of a large result; the second with --quick on `compute`, which may take long."""
EPILOGUES: Sequence[Epilogue] = (BIASED.then(RELU), RELU, BIASED, SUMMED, BIASED_TANH)
AWKWARD: Mapping[str, Sequence[tuple[Operator, Operands]]] = {
    "matmul": [
        (Matmul(), {"x": (1, 1), "weight": (1, 1)}),
        (Matmul(), {"x": (3, 7), "weight": (127, 7)}),
        (Matmul(), {"x": (127, 129), "weight": (3, 129)}),
        (Matmul(), {"x": (1, 1031), "weight": (129, 1031)}),
    ],
    "conv2d": [
        (Conv2d(), {"x": (1, 1, 1, 1), "weight": (1, 1, 1, 1)}),
        (Conv2d(), {"x": (1, 3, 7, 13), "weight": (127, 3, 1, 1)}),
        (Conv2d(padding=(1, 1, 1, 1)), {"x": (3, 4, 17, 7), "weight": (8, 4, 3, 3)}),
        (Conv2d(padding=(2, 2, 2, 2)), {"x": (1, 1, 13, 11), "weight": (7, 1, 5, 5)}),
    ],
    "conv2d_input_gradient": [
        (
            Conv2dInputGradient((7, 9), (1, 1), (1, 0, 0, 1)),
            {"dy": (1, 33, 7, 9), "weight": (33, 16, 2, 2)},
        ),
    ],
    "softmax": [(Softmax(), {"x": (3, 1)}), (Softmax(log=True), {"x": (7, 129)})],
    "normalize": [(Normalize(dims=1), {"x": (3, 7), "weight": (7,), "bias": (7,)})],
    "reduce": [
        (Reduce("sum", (1,)), {"x0": (129, 127)}),
        (Reduce("max", (0,)), {"x0": (127, 3)}),
        (Reduce("mean", (2, 3)), {"x0": (3, 7, 13, 11)}),
    ],
    "pool2d": [
        (Pool2d("max", (2, 2), (2, 2)), {"x": (1, 3, 7, 13)}),
        (Pool2d("average", (3, 3), (1, 1)), {"x": (3, 4, 7, 13)}),
    ],
}
"""Further problems, of awkward sizes: one, primes, one more or less than a tile's."""


@dataclass(frozen=True)
class Form:
    """A kernel, and a problem that it is tested with."""

    kernel: Kernel
    """The kernel, with the parameters that it would run with."""
    spec: OpSpec
    """The problem to compute."""
    plain: bool = False
    """Whether it has no epilogue and only float32: where it is wrong, the kernel is not used."""
    first: bool = False
    """Whether it is tested in many sizes, and in a large launch."""
    name: str | None = None
    """The name by which a kernel made of stages is run."""
    quick: bool = False
    """Whether it is tested with fewer sizes, and in smaller launches."""

    @property
    def what(self) -> str:
        """The kernel and the sizes, for people."""
        sizes = " ".join(str(shape) for shape in self.spec.shapes.values())
        return f"{self.kernel.op} by {self.kernel.name} of {sizes}"

    def specs(self, backend: GlBackend) -> Iterator[OpSpec]:
        """Yield the problem, and those of awkward sizes that the same program computes."""
        yield self.spec
        specs, offers = {self.spec}, backend.device.capabilities
        program = program_key(self.kernel, self.spec, offers)
        counts = QUICK_COUNTS if self.quick else COUNTS
        for spec in _other_sizes(self.spec, counts) if self.first else ():
            if spec in specs or why_not(self.kernel, spec, offers) is not None:
                continue
            specs.add(spec)
            if program_key(self.kernel, spec, offers) == program:
                yield spec

    def large(self, backend: GlBackend) -> OpSpec:
        """Return the problem with so many samples that its result is large; unchanged where the
        same program cannot compute that.
        """
        op, output = self.spec.op, self.spec.result_shape
        if not (self.first and op.samples and self.spec.sample_operands) or 0 in output:
            return self.spec
        large = QUICK_LARGE if self.quick and backend.name == "compute" else LARGE
        count = max(large // max(self.sample_elements, 1), output[0])
        larger = self.spec.of_samples(count)
        offers = backend.device.capabilities
        is_computable = why_not(self.kernel, larger, offers) is None
        is_same = is_computable and program_key(self.kernel, larger, offers) == program_key(
            self.kernel, self.spec, offers
        )
        return larger if is_same else self.spec

    @cached_property
    def sample_elements(self) -> int:
        """The elements of a sample's result."""
        return prod(self.spec.result_shape[1:])


def forms(backend: GlBackend, ops: Sequence[str] | None = None, full: bool = False) -> list[Form]:
    """Return the forms of kernels to test on `backend`, those that are chosen first before others.

    ops: of these alone. full: with every epilogue, and those kernels that run by name only.
    """
    kernels = kernels_of(backend, ops, full)
    return [form for kernel in kernels for form in forms_of(backend, kernel, full)]


def kernels_of(
    backend: GlBackend, ops: Sequence[str] | None = None, full: bool = False
) -> list[Kernel]:
    """Return the kernels of `backend`, those that are chosen first before others; as `forms`."""
    kernels = [k for k in declared() if k.backend == backend.name and (full or not k.document)]
    kernels = [k for k in kernels if ops is None or k.op in ops]
    return sorted(kernels, key=lambda k: (k.op, -k.priority))


def forms_of(backend: GlBackend, kernel: Kernel, full: bool = False) -> list[Form]:
    """Return the forms of one kernel, with each set of parameters that it may have here."""
    return [
        form for one in _versions(backend, kernel) for form in _forms_of_kernel(backend, one, full)
    ]


def _versions(backend: GlBackend, kernel: Kernel) -> list[Kernel]:
    """Return `kernel` with each set of parameters that it may have on this device."""
    offers = backend.device.capabilities
    default = fitted(kernel, offers)
    if default is None:
        return []
    versions = [choice.apply(kernel) for choice in backend.tuned.choices.values()]
    tuned = [one for one in versions if one is not None and one.defaults != default.defaults]
    return [default, *dict.fromkeys(tuned)]


def _forms_of_kernel(backend: GlBackend, kernel: Kernel, full: bool) -> Iterator[Form]:
    """Yield the forms of `kernel`, the simplest first: one for each program and known layouts."""
    offers, yielded, first = backend.device.capabilities, set[object](), True
    for spec in _problems(kernel, full):
        try:
            adapted = spec.adapted(kernel)
        except UnsupportedOpError:
            continue
        if why_not(adapted, spec, offers) is not None:
            continue
        plain = spec.epilogue is None and not spec.fp16_operands and not spec.int8_operands
        if kernel.stages:
            if spec not in yielded:
                yield Form(adapted, spec, plain, name=kernel.name)
            yielded.add(spec)
            continue
        try:
            key = program_key(adapted, spec, offers), spec.known_layouts
        except LimitError:
            continue
        sized = key if first or not plain else (*key, spec.operands)
        if sized not in yielded:
            yield Form(adapted, spec, plain, first)
            first = False
        yielded |= {key, sized}


def _problems(kernel: Kernel, full: bool) -> Iterator[OpSpec]:
    """Yield the problems that `kernel` is tested with, the simplest first."""
    problems = [(op, operands_of) for op, operands_of, *_ in PROBLEMS.get(kernel.op, ())]
    problems += AWKWARD.get(kernel.op, ())
    if kernel.generate:
        examples = GENERATORS[kernel.generate].examples().values()
        problems = [(op, types) for op, types in examples if op.name == kernel.op] + problems
    bare = []
    for op, operands in problems:
        operands_of = {
            name: one for name, one in operands.items() if name in op.names(len(operands))
        }
        types = {
            n: o if isinstance(o, TensorType) else TensorType(o) for n, o in operands_of.items()
        }
        narrow = [name for name, one in types.items() if one.dtype.narrow]
        bare.append(OpSpec.create(op, types, dict.fromkeys(narrow, PACKED.name)))
    yield from bare
    for spec in bare if full else bare[:1]:
        yield from _in_every_layout(kernel, spec)
        narrow_types = [(name, DType.float16) for name in kernel.fp16_operands]
        for name, dtype in (*narrow_types, *((name, DType.int8) for name in kernel.int8_operands)):
            if name in spec.types and spec.types[name].dtype is DType.float32:
                yield spec.stored({name}, dtype)
    if kernel.epilogue:
        for spec in bare if full else bare[:1]:
            for epilogue in EPILOGUES if full else EPILOGUES[:2]:
                if extended := _with_epilogue(spec, epilogue):
                    yield extended


def _with_epilogue(spec: OpSpec, epilogue: Epilogue) -> OpSpec | None:
    """Return `spec` with that epilogue; None where it cannot have it."""
    try:
        extra = {name: TensorType(s) for name, s in epilogue.shapes(spec.result_shape).items()}
        types = {**dict(spec.operands), **extra}
        return OpSpec.create(spec.op, types, spec.layouts, epilogue)
    except (ShapeError, IndexError):
        return None


def _in_every_layout(kernel: Kernel, spec: OpSpec) -> Iterator[OpSpec]:
    """Yield `spec` with each computed operand in every layout that `kernel` takes it in."""
    for name in spec.op_shapes:
        texts = kernel.layouts.get(name, ())
        for text in texts if len(texts) > 1 and name not in spec.op.parameters else ():
            yield spec.with_layouts({**spec.layouts, name: text})


def _other_sizes(spec: OpSpec, counts: Sequence[int]) -> Iterator[OpSpec]:
    """Yield `spec` with these numbers of samples, and of terms of its sums."""
    for count in counts:
        if spec.op.samples and spec.sample_operands:
            yield spec.of_samples(count)
        if spec.op.has_depth:
            shapes: Shapes = spec.op.of_depth(spec.shapes, count)
            yield spec.resized(shapes)


@dataclass
class KernelResult:
    """The accuracy of one kernel on one backend."""

    backend: str
    """The backend's name."""
    op: str
    """The op's name."""
    kernel: str
    """The kernel's name."""
    parameters: Mapping[str, int]
    """The parameters that it ran with."""
    problems: int = 0
    """The number of problems that it computed."""
    part: int | None = None
    """The most vertices or workgroups of one launch that is right; None where any is."""
    wrong: dict[str, str] = field(default_factory=dict)
    """The fault of each problem that is not used."""
    whole: bool = False
    """Whether no program of the kernel is used, as it was wrong in its simplest form."""
    left: dict[str, str] = field(default_factory=dict)
    """The checks that failed, with their exceptions."""

    @property
    def reason(self) -> str:
        """The first fault; empty where there is none."""
        return next(iter(self.wrong.values()), "")

    @property
    def ok(self) -> bool:
        """True where no fault was found."""
        return not self.wrong and self.part is None

    @property
    def outcome(self) -> str:
        """The result in a few words."""
        if self.whole:
            return "not used"
        if self.wrong:
            return "not used for some"
        if self.part is not None:
            return f"in parts of {self.part}"
        return "right" if self.problems else "not looked at"


class KernelDoctor:
    """Tests the kernels of `backend`, and collects the verdicts on them.

    The backend begins with those verdicts only that are on functions, and keeps none on disk.
    """

    def __init__(self, backend: GlBackend, functions: Mapping[str, Verdict]) -> None:
        self.backend = backend
        file = backend.verdicts.file
        backend.verdicts = Verdicts(replace(file, path=None), dict(functions))
        self.results: dict[str, KernelResult] = {}
        self.looked: set[str] = set()  # keys of the verdicts on kernels that were fully examined

    def look(self, form: Form) -> None:
        """Test `form` in launches of any size, and add the verdict to the backend's.

        Only in the thread that opened the device. DeviceError and MemoryError say nothing of the
        kernel: they are raised, and there is no verdict. Neither is there one where the device is
        lost, whatever is raised.
        """
        kernel, spec, device = form.kernel, form.spec, self.backend.device
        result = self._result(kernel)
        verdict = self.backend.verdicts.find(kernel, spec, device.capabilities)
        if verdict.wrong is not None:  # a function that it calls, or the whole kernel
            if not result.whole:
                result.left[form.what] = verdict.wrong
            return
        try:
            wrong = self._check_stages(form) if form.name else self._check_program(form, result)
        except (
            Exception
        ) as error:  # whether glnn or the driver is at fault, a kernel that raises is not used
            if device.lost is not None or isinstance(error, (DeviceError, MemoryError)):
                result.left[form.what] = raised(error)
                raise
            if isinstance(error, LimitError):
                result.left[form.what] = str(error)
                return
            refused = isinstance(error, ShaderError)
            wrong = f"it does not compile: {first_line(error)}" if refused else raised(error)
        if device.lost is not None:
            result.left[form.what] = device.lost
            raise DeviceError(device.lost)
        self.looked |= {kernel_key(kernel)} if form.name else {kernel_key(kernel), self._key(form)}
        if wrong is not None:
            result.wrong[form.what] = wrong
            self._reject(form, form.kernel.without_folder(wrong))

    def _key(self, form: Form) -> str:
        """Return the key of a verdict on the program of `form`."""
        return f"{program_key(form.kernel, form.spec, self.backend.device.capabilities)} {ALWAYS}"

    def _result(self, kernel: Kernel) -> KernelResult:
        key = kernel_key(kernel)
        identity = kernel.backend, kernel.op, kernel.name, dict(kernel.defaults)
        return self.results.setdefault(key, KernelResult(*identity))

    def _check_program(self, form: Form, result: KernelResult) -> str | None:
        """Return the fault of a kernel that is one program; None where there is none."""
        backend, offers = self.backend, self.backend.device.capabilities
        kernel, large = form.kernel, form.large(backend)
        faults: list[Fault] = []
        wrong = examine(backend, [(kernel, large)], lambda *finding: faults.append(finding[2]))
        verdict = backend.verdicts.find(kernel, large, offers)
        if wrong or verdict.wrong is not None:
            # A verdict on the whole program replaces it: see `_reject`.
            for key in (verdict_key, sizes_key):
                backend.verdicts.found.pop(key(kernel, large, offers), None)
            return faults[-1].text if faults else verdict.wrong
        if verdict.part is not None:
            result.part = min(verdict.part, result.part or verdict.part)
        for other in form.specs(backend):
            trial = Trial(backend, kernel, other, special_values=False, whole=True)
            trial.look(verdict.part, verdict.pace)
            result.problems += 1
            fault = trial.fault
            del trial  # frees its memory for the next one
            if fault is not None and wrong_again(
                backend, kernel, other, False, verdict.part, verdict.pace
            ):
                return fault.text
        return None

    def _check_stages(self, form: Form) -> str | None:
        """Return the fault of a kernel that is made of stages; None where there is none."""
        operands = numbers(form.spec)
        op, epilogue = form.spec.op, form.spec.epilogue
        got = evaluate(op, operands, self.backend, form.name, epilogue)
        precise = {
            name: array.astype(np.float64) if array.dtype.kind == "f" else array
            for name, array in operands.items()
        }
        expected = form.spec.compute(precise)
        error = relative_error(got.astype(np.float64), expected.astype(np.float64))
        self._result(form.kernel).problems += 1
        most = allowed(form.kernel, form.spec)
        return None if error <= most else f"its stages together are off by {error:.1e}"

    def _reject(self, form: Form, why: str) -> None:
        """Add the verdict by which the kernel, or this program of it, is not used."""
        verdicts, offers = self.backend.verdicts, self.backend.device.capabilities
        whole = form.plain and not form.kernel.generate
        self._result(form.kernel).whole |= whole
        key = kernel_key(form.kernel) if whole or form.name else self._key(form)
        verdicts.keep({key: Verdict(wrong=f"its results on {offers.renderer} are wrong: {why}")})


def numbers(spec: OpSpec) -> dict[str, Array]:
    """Make random operands of `spec`: floats of about 1, and small integers."""
    generator = np.random.default_rng(11)
    result: dict[str, Array] = {}
    for name, one in spec.operands:
        if one.dtype.kind == "float":
            array: Array = generator.standard_normal(one.shape).astype(one.dtype.numpy)
        else:
            array = generator.integers(0, 2, one.shape).astype(one.dtype.numpy)
        result[name] = spec.op.trial(name, array, spec.op_shapes)
    return result
