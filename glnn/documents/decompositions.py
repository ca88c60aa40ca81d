"""Decompositions of products and convolutions that the documents describe."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from glnn.graph.compose.decompositions import (
    Decompose,
    Decomposition,
    DerivedParameter,
    Stage,
    decompose_by_patches,
    kernel_matrix,
    split_sums,
)
from glnn.graph.operator import Operator, Shapes
from glnn.graph.operators.conv2d import Conv2d
from glnn.graph.operators.conv2d_lowering import Im2row, Images, Rows, ShiftAdd, TapRows, Zero
from glnn.graph.operators.matmul import COLUMNS, TRANSPOSED, Matmul
from glnn.graph.operators.move import Pad
from glnn.graph.operators.reorder import Reorder

MORTON = "R 2 4 R"  # of the patches and the result (the weights: C 4 2 C, transposed)
MOST_COMPONENTS = 4  # numbers of a vertex attribute


def decompose_im2col(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Decomposition:
    """Rovder 2019, section 5.2: padding, zeroing, im2col and the Morton 4-2 product as stages."""
    assert isinstance(op, Conv2d)
    n, _, oh, ow = op.shape_of(shapes)
    kernel = shapes["weight"][2:]
    rows, depth = n * oh * ow, prod(shapes["weight"][1:])
    gather = Im2row((kernel[0], kernel[1]), op.stride, (0, 0, 0, 0), op.dilation)
    top, left, bottom, right = op.padding
    return Decomposition(
        (
            Stage("padding", Pad((0, 0, top, left), (0, 0, bottom, right)), {"x": "x"}, "nhwc"),
            Stage("zeroing", Zero((rows, depth), MORTON), {}, "vec4"),
            Stage("im2col", gather, {"x": "padding", "into": "zeroing"}, "morton_2_4"),
            Stage("product", Matmul(), {"x": "im2col", "weight": "matrix"}, "morton_4_2", True),
            Stage("rows", Reorder(MORTON, "R4"), {"x": "product"}),
            Stage("result", Images((n, oh, ow)), {"x": "rows"}),
        ),
        {"matrix": kernel_matrix(shapes)},
    )


def decompose_im2row(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Decomposition:
    """Cronin 2018, section 4.1.3: im2row, then one of three products.

    ORDER 0 is ab-ik (the patches by the kernels), 1 abt-ik (by the kernels, stored transposed), and
    2 abt-ki (the kernels by the transposed patches).
    """
    order = parameters["ORDER"]
    return decompose_by_patches(
        op, shapes, order == 2, "rows", "blocked_nt" if order else "blocked_nn"
    )


def decompose_kn2row(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Decomposition:
    """Cronin 2018, section 2.4.5, for stride 1: kernels as rows, and a post-pass shift add.

    The products of the kernels' 1 x 1 slices and all pixels are one product, of kh * kw * o
    columns.
    """
    assert isinstance(op, Conv2d)
    n, _, h, w = shapes["x"]
    o, c, kh, kw = shapes["weight"]
    add = ShiftAdd((n, h, w), (kh, kw), op.padding, op.dilation)
    return Decomposition(
        (
            Stage("rows", Rows(), {"x": "x"}),
            Stage("product", Matmul(), {"x": "rows", "weight": "matrix"}),
            Stage("result", add, {"x": "product"}, "nhwc", True),
        ),
        {"matrix": DerivedParameter("weight", (kh * kw * o, c), TapRows())},
    )


def decompose_cronin(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Decomposition:
    """Cronin 2018, sections 3.4 to 3.8: sums in parts that fit a vertex attribute.

    A part has the most numbers up to four that divide k, and one where A is transposed.
    A_TRANSPOSED: whether the rows of x are columns of A. B_TRANSPOSED: whether the rows of the
    weights are rows of B.
    """
    k = shapes["x"][1]
    width = next(w for w in range(MOST_COMPONENTS, 0, -1) if k % w == 0)
    if parameters["A_TRANSPOSED"]:
        name = "cronin_atbt" if parameters["B_TRANSPOSED"] else "cronin_atb"
        return split_sums(op, shapes, k, TRANSPOSED, name)
    narrow = "" if width == MOST_COMPONENTS else "_narrow"
    name = f"cronin_abt{narrow}" if parameters["B_TRANSPOSED"] else "cronin_ab"
    return split_sums(op, shapes, k // width, COLUMNS, name)


DECOMPOSITIONS: Mapping[str, Decompose] = {
    "im2col": decompose_im2col,
    "im2row": decompose_im2row,
    "kn2row": decompose_kn2row,
    "cronin": decompose_cronin,
}
"""Decompositions by the names that kernels in `shaders/documents` use."""
