"""Small awkward problems for every op that has kernels."""

from __future__ import annotations

from glnn.graph.operators import (
    Activation,
    Add,
    BatchNorm,
    Bias,
    Concat,
    Contraction,
    Conv2d,
    LocalResponseNorm,
    Matmul,
    Pool2d,
    Softmax,
    Subsample,
)
from glnn.graph.operators.im2row import Im2row
from glnn.graph.operators.matmul_parts import MatmulParts
from glnn.graph.operators.matmul_sum import MatmulSum
from glnn.graph.operators.pad2d import Pad2d
from glnn.graph.operators.repack import Repack
from glnn.graph.operators.winograd_input import WinogradInput
from glnn.graph.operators.winograd_output import WinogradOutput
from glnn.graph.operators.zero import Zero

PROBLEMS: dict[str, list[tuple[Contraction, dict[str, tuple[int, ...]]]]] = {
    "matmul": [
        (Matmul(activation="tanh"), {"x": (67, 37), "weight": (131, 37), "bias": (131,)}),
        (Matmul(), {"x": (3 * 67, 37), "weight": (3, 131, 37)}),
    ],
    "matmul_parts": [
        (MatmulParts(3), {"x": (67, 37), "weight": (131, 37)}),
        (MatmulParts(9, "columns"), {"x": (67, 36), "weight": (131, 36)}),
        (MatmulParts(37, "transposed"), {"x": (67, 37), "weight": (131, 37)}),
    ],
    "matmul_sum": [
        (MatmulSum(3, activation="tanh"), {"x": (3 * 67, 131), "bias": (131,)}),
        (MatmulSum(9, "columns"), {"x": (1, 131, 67, 9), "c": (67, 131)}),
    ],
    "bias": [
        (Bias(), {"x": (37, 131), "bias": (131,)}),
        (Bias(), {"x": (2, 37, 11, 9), "bias": (37,)}),
    ],
    "activation": [(Activation("sigmoid"), {"x": (37, 131)})],
    "softmax": [(Softmax(), {"x": (37, 131)})],
    "pool2d": [
        (Pool2d("max", (3, 2), (2, 1)), {"x": (2, 5, 11, 9)}),
        (Pool2d("average", None), {"x": (2, 37, 11, 9)}),
    ],
    "subsample": [
        (Subsample((2, 3), "tanh"), {"x": (2, 37, 11, 9), "weight": (37,), "bias": (37,)})
    ],
    "batch_norm": [
        (BatchNorm("relu"), {"x": (2, 37, 11, 9), "scale": (37,), "shift": (37,)}),
    ],
    "local_response_norm": [(LocalResponseNorm(5, 0.5), {"x": (2, 37, 11, 9)})],
    "add": [(Add("sigmoid"), {"x": (37, 131), "y": (37, 131)})],
    "concat": [
        (Concat(), {"x0": (2, 37, 11, 9), "x1": (2, 6, 11, 9)}),
        (Concat(), {"x0": (2, 36, 11, 9), "x1": (2, 8, 11, 9), "x2": (2, 4, 11, 9)}),
    ],
    "repack": [
        (Repack("R", "C 4 2 C"), {"x": (37, 131)}),
        (Repack("R", "R f16"), {"x": (37, 131)}),
        (Repack("R", "nhwC4c"), {"x": (2, 37, 11, 9)}),
        (Repack("nhwC4c", "R"), {"x": (2, 37, 11, 9)}),
        (Repack("R", "nChw4c"), {"x": (2, 37, 11, 9)}),
        (Repack("nChw4c", "R"), {"x": (2, 37, 11, 9)}),
        (Repack("nhwC4c", "nChw4c"), {"x": (2, 37, 11, 9)}),
    ],
    "conv2d": [
        (Conv2d((2, 1), (1, 1, 1, 1)), {"x": (2, 5, 11, 9), "weight": (7, 5, 3, 3), "bias": (7,)}),
        (Conv2d(groups=2), {"x": (2, 6, 11, 9), "weight": (8, 3, 3, 3), "bias": (8,)}),
        (  # channels last, a whole tile of pixels and another of output channels begun
            Conv2d(padding=(1, 0, 0, 1), activation="relu"),
            {"x": (2, 7, 11, 9), "residual": (2, 33, 10, 8), "weight": (33, 7, 3, 3)},
        ),
        (
            Conv2d((1, 2), (1, 1, 1, 1), groups=17),
            {"x": (2, 17, 11, 9), "weight": (17, 1, 3, 3), "bias": (17,)},
        ),
    ],
    "im2row": [
        (Im2row((3, 2), (2, 1), (1, 0, 0, 1)), {"x": (2, 7, 11, 9)}),
        (Im2row((1, 1)), {"x": (1, 37, 5, 9), "into": (45, 37)}),
    ],
    "pad2d": [(Pad2d((1, 0, 2, 3)), {"x": (2, 37, 11, 9)})],
    "zero": [(Zero((67, 131)), {}), (Zero((67, 131), "R 2 4 R"), {})],
    "winograd_input": [
        (WinogradInput(tile, (1, 0, 0, 1)), {"x": (2, 37, 11, 9)}) for tile in (2, 4)
    ],
    "winograd_output": [
        (
            WinogradOutput((2, 7, 6), tile, "tanh"),
            {"x": (rows, 37), "residual": (2, 37, 7, 6), "bias": (37,)},
        )
        for tile, rows in ((2, 16 * 2 * 4 * 3), (4, 36 * 2 * 2 * 2))
    ],
}
