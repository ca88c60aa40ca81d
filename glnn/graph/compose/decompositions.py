"""Decompositions of operators into stages that have kernels of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import prod

from glnn.core.symint import hint, same
from glnn.core.types import Shape
from glnn.graph.expression import Arg, Expr, call, formula
from glnn.graph.index_map import Axis
from glnn.graph.operator import Operator, Shapes
from glnn.graph.operators.attention import TOKENS_FIRST, Attention, PartialAttention
from glnn.graph.operators.cached_attention import AttentionParts, AttentionSum, CachedAttention
from glnn.graph.operators.channel_sums import ChannelSums, MergeChannelSums
from glnn.graph.operators.conv2d import Conv2d, PooledConv2d
from glnn.graph.operators.conv2d_gradients import Conv2dInputGradient, Conv2dWeightGradient
from glnn.graph.operators.conv2d_lowering import (
    Im2row,
    Images,
    KernelRows,
    Rows,
    WinogradWeights,
    Zero,
)
from glnn.graph.operators.fourier import Fourier
from glnn.graph.operators.matmul import ROWS, Matmul, MatmulParts, MatmulSum
from glnn.graph.operators.move import Rearrange, Slice
from glnn.graph.operators.normalization import (
    Normalize,
    NormalizeGradient,
    Softmax,
    SoftmaxGradient,
)
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.quantized_matmul import QuantizedMatmul, gated
from glnn.graph.operators.reductions import LEAST, Reduce
from glnn.graph.operators.reorder import Reorder
from glnn.graph.operators.rotary import Rotary
from glnn.graph.operators.top_k import PART, MergeTopK, TopK
from glnn.graph.operators.views import Reshape
from glnn.graph.operators.winograd import WinogradInput, WinogradOutput, winograd
from glnn.registry import module_for, registered


@dataclass(frozen=True)
class Stage:
    """An op that computes an intermediate or the final result of a decomposed op.

    operands: for each operand of the stage the name of an operand of the decomposed op, of a
    derived parameter, or of an earlier stage. kernel: the kernel to use; None leaves the choice
    open. finishes: whether the stage has the decomposed op's epilogue.
    """

    name: str
    op: Operator
    operands: Mapping[str, str]
    kernel: str | None = None
    finishes: bool = False


@dataclass(frozen=True)
class DerivedParameter:
    """An operand that the host computes from the weight called `source`, once for each weight.

    transposed: True for a matrix whose transpose is the source's memory, so that products read the
    source in place.
    """

    source: str
    shape: Shape
    operator: Operator
    transposed: bool = False

    @property
    def moves(self) -> bool:
        """True where it is a copy, which each run must make if runs change the source."""
        return not (self.operator.view or self.transposed)


@dataclass(frozen=True)
class Decomposition:
    """The stages that compute an op: the last one computes its result, one has its epilogue.

    epilogue_view: the view in which that stage reads the epilogue's operands of the result's shape.
    """

    stages: tuple[Stage, ...]
    derived: Mapping[str, DerivedParameter] = field(default_factory=dict)
    epilogue_view: Operator | None = None


MOST_PARTIAL_SUMS = 1 << 20  # numbers of all parts of a gradient by a weight together


def decompose_winograd(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Return F(TILE x TILE, 3 x 3) of Lavin and Gray 2016: transform, (TILE + 2)^2 products,
    inverse transform.

    PARTS: the number of parts of the tiles, which are computed one after the other in the same
    memory; at most one for each tile.
    """
    assert isinstance(op, Conv2d)
    form, out = winograd(parameters["TILE"]), op.shape_of(shapes)
    n, o, oh, ow = op.convolution_shape(shapes)
    mode = op.mode if isinstance(op, PooledConv2d) else None
    weight = (form.window**2, o, shapes["weight"][1])
    tiles = n * -(-oh // form.tile) * -(-ow // form.tile)
    count = min(parameters["PARTS"], tiles)
    stages = [] if count < 2 else [Stage("room", Zero(out, "nhwC4c"), {}, "vec4")]
    for i in range(count):
        first, end = i * tiles // count, (i + 1) * tiles // count
        part, suffix = ((first, end - first), f" {i + 1}") if count > 1 else (None, "")
        transform = WinogradInput(form.tile, op.padding, part)
        inverse = WinogradOutput((n, oh, ow), form.tile, part, mode)
        factors = {"x": f"tiles{suffix}", "weight": "transformed"}
        reads = {"x": f"products{suffix}", **({"into": stages[-1].name} if stages else {})}
        stages += [
            Stage(f"tiles{suffix}", transform, {"x": "x"}),
            Stage(f"products{suffix}", Matmul(), factors),
            Stage(f"result{suffix}", inverse, reads, finishes=True),
        ]
    return Decomposition(
        tuple(stages),
        {"transformed": DerivedParameter("weight", weight, WinogradWeights(form.tile))},
    )


def decompose_pointwise_conv(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Return a 1 x 1 convolution of stride 1 as the product of pixels' channels by the weights."""
    assert isinstance(op, Conv2d)
    n, _, h, w = op.shape_of(shapes)
    prologue_operands = {
        name: f"{name} rows" if name in op.by_image() else name for name in op.prologue_operands
    }
    operands = {"x": "rows", "weight": "matrix", **prologue_operands}
    return Decomposition(
        (
            Stage("rows", Rows(), {"x": "x"}),
            *(Stage(prologue_operands[name], Rows(), {"x": name}) for name in op.by_image()),
            Stage("product", Matmul(op.prologue), operands, finishes=True),
            Stage("result", Images((n, h, w)), {"x": "product"}),
        ),
        {"matrix": kernel_matrix(shapes)},
        Rows(),
    )


def decompose_patches(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Decomposition:
    """Return a convolution as the product of im2row's patches by the kernels.

    KERNELS_FIRST: as the product of the kernels by the patches, whose result is transposed.
    """
    return decompose_by_patches(op, shapes, bool(parameters["KERNELS_FIRST"]))


def decompose_weight_gradient(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Return at most PARTS parts of a gradient by a weight, computed in parallel, of LEAST pixels
    or more, and their sum.

    CHANNELS_LAST: use the kernel for images with channels last, which others are copied to.
    """
    assert isinstance(op, Conv2dWeightGradient)
    o, share, *kernel_size = op.shape_of(shapes)
    most = MOST_PARTIAL_SUMS // prod((o, share, *kernel_size))
    parts = min(parameters["PARTS"], most, op.depth(shapes) // parameters["LEAST"])
    parts = max(parts, 1)
    kernel = "gemm_tiled" if parameters.get("CHANNELS_LAST") and op.groups == 1 else None
    first = Stage("parts", replace(op, parts=parts), {"x": "x", "dy": "dy"}, kernel)
    if parts == 1:
        reshape = Reshape((o, share, *kernel_size))
        return Decomposition((first, Stage("result", reshape, {"x": "parts"})))
    return Decomposition((first, Stage("result", Reduce("sum", (0,)), {"x0": "parts"})))


def decompose_input_gradient(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Return the gradient by x of a convolution of stride 1 as a convolution of dy, by the weight
    with its taps flipped and input and output channels swapped.
    """
    assert isinstance(op, Conv2dInputGradient)
    shape = shapes["weight"]
    o, c, kh, kw = (Axis(size, axis) for axis, size in enumerate(shape))
    flipped = tuple(Axis(taps.size, taps.axis, taps.size - 1, -1) for taps in (kh, kw))
    reach = tuple(d * (k - 1) for d, k in zip(op.dilation, shape[2:], strict=True))
    top, left, bottom, right = (r - p for r, p in zip(2 * reach, op.padding, strict=True))
    convolution = Conv2d(padding=(top, left, bottom, right), dilation=op.dilation)
    rearrange = Rearrange(shape, ((c,), (o,), *((taps,) for taps in flipped)))
    stage = Stage("result", convolution, {"x": "dy", "weight": "flipped"}, finishes=True)
    derived = DerivedParameter("weight", (shape[1], shape[0], *shape[2:]), rearrange)
    return Decomposition((stage,), {"flipped": derived})


def decompose_pointwise_gradient(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Return the gradient by x of a 1 x 1 convolution of stride 1 as the product of dy's pixels by
    the transposed weights.
    """
    assert isinstance(op, Conv2dInputGradient)
    n, c, h, w = op.shape_of(shapes)
    out, inner, kh, kw = (Axis(size, axis) for axis, size in enumerate(shapes["weight"]))
    transposed = Rearrange(shapes["weight"], ((inner,), (out, kh, kw)))
    product = {"x": "rows", "weight": "transposed"}
    return Decomposition(
        (
            Stage("rows", Rows(), {"x": "dy"}),
            Stage("product", Matmul(), product, finishes=True),
            Stage("result", Images((n, h, w)), {"x": "product"}),
        ),
        {
            "transposed": DerivedParameter(
                "weight", (c, shapes["weight"][0]), transposed, transposed=True
            )
        },
        Rows(),
    )


def decompose_by_patches(
    op: Operator,
    shapes: Shapes,
    first: bool,
    gather: str | None = None,
    product: str | None = None,
) -> Decomposition:
    """Return a convolution as the product of its patches by the kernels or, with `first`, of the
    kernels by the patches.

    gather, product: the kernels of the stages `im2row` and `product`.
    """
    assert isinstance(op, Conv2d)
    n, _, oh, ow = op.shape_of(shapes)
    kernel = shapes["weight"][2:]
    im2row = Im2row((kernel[0], kernel[1]), op.stride, op.padding, op.dilation)
    factors = ("matrix", "im2row") if first else ("im2row", "matrix")
    operands = dict(zip(("x", "weight"), factors, strict=True))
    transposed = [Stage("transposition", Reorder("R4", "C"), {"x": "product"})] if first else []
    rows = "transposition" if first else "product"
    return Decomposition(
        (
            Stage("im2row", im2row, {"x": "x"}, gather),
            Stage("product", Matmul(), operands, product, finishes=True),
            *transposed,
            Stage("result", Images((n, oh, ow), first), {"x": rows}),
        ),
        {"matrix": kernel_matrix(shapes)},
    )


def kernel_matrix(shapes: Shapes) -> DerivedParameter:
    """Return the weights as a matrix with a row for each output channel, in the order of Im2row's
    columns.
    """
    o, c, kh, kw = shapes["weight"]
    shape = o, kh * kw * c
    one_tap = same(kh * kw, 1)
    return DerivedParameter("weight", shape, Reshape(shape) if one_tap else KernelRows())


def decompose_split_k(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Decomposition:
    """Split each sum into PARTS that are computed in parallel, for products of few results."""
    return split_sums(op, shapes, parameters["PARTS"], ROWS, None)


def split_sums(
    op: Operator, shapes: Shapes, parts: int, order: str, kernel: str | None
) -> Decomposition:
    """Return the parts of a product's sums in `order`, computed by `kernel`, and their sum."""
    assert isinstance(op, Matmul)
    return Decomposition(
        (
            Stage("parts", MatmulParts(parts, order), {"x": "x", "weight": "weight"}, kernel),
            Stage("sum", MatmulSum(parts, order), {"x": "parts"}, finishes=True),
        )
    )


def decompose_softmax(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Decomposition:
    """Compute the maximum, the sum of exp(x - maximum), and the quotients or their logarithms."""
    assert isinstance(op, Softmax)
    shifted = call("sub", Arg(0), Arg(1))
    finish = call("log", Arg(0)) if op.log else Arg(0)
    result = call("sub", shifted, Arg(2)) if op.log else call("div", call("exp", shifted), Arg(2))
    total = Reduce("sum", (op.axis,), True, call("exp", shifted), finish)
    return Decomposition(
        (
            Stage("maximum", Reduce("max", (op.axis,), True), {"x0": "x"}),
            Stage("sum", total, {"x0": "x", "x1": "maximum"}),
            Stage("result", Pointwise(result), {"x0": "x", "x1": "maximum", "x2": "sum"}),
        )
    )


def decompose_reduce(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Decomposition:
    """Split each reduction into at most PARTS that are computed in parallel, and reduce these."""
    assert isinstance(op, Reduce)
    extent = op.depth(shapes)
    parts = max(min(parameters["PARTS"], hint(extent) // LEAST), 1)  # valid for any extent
    count = extent if op.kind == "mean" else 0
    reduce_parts = Reduce(op.kind, (0,), finish=op.finish, count=count)
    return Decomposition(
        (
            Stage("parts", replace(op, parts=parts), {name: name for name in shapes}),
            Stage("whole", reduce_parts, {"x0": "parts"}, finishes=True),
        )
    )


def decompose_channel_sums(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Return the sums of at most PARTS equal parts of the pixels, of LEAST or more, computed in
    parallel, and a stage that merges them.
    """
    assert isinstance(op, ChannelSums)
    pixels = op.depth(shapes)
    most = min(parameters["PARTS"], hint(pixels) // parameters["LEAST"])
    parts = next((parts for parts in range(most, 1, -1) if pixels % parts == 0), 1)
    return Decomposition(
        (
            Stage("parts", replace(op, parts=parts), {name: name for name in shapes}),
            Stage("result", MergeChannelSums("dy" not in shapes), {"x": "parts"}),
        )
    )


def decompose_fourier(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Decomposition:
    """Return the product of the rows by the factors of the transform."""
    assert isinstance(op, Fourier)
    return Decomposition((Stage("result", Matmul(), {"x": "x", "weight": "factors"}),))


def decompose_top_k_by_lists(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Merge sorted lists of one number, then of two, and so on; each keeps at most `k` numbers."""
    assert isinstance(op, TopK)
    stages: list[Stage] = []
    length, n = 1, shapes["x"][-1]
    while not stages or length < n:
        places = {"places": stages[-1].name} if stages else {}
        most = op.k if op.k < length else length
        stages.append(
            Stage(f"lists of {2 * length}", MergeTopK(op.k, op.largest, most), {"x": "x", **places})
        )
        length *= 2
    return Decomposition(tuple(stages))


def decompose_top_k_by_parts(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Return the top k of at most PARTS parts of a row, and the top k of these."""
    assert isinstance(op, TopK)
    parts = min(parameters["PARTS"], hint(shapes["x"][-1]) // PART)
    return Decomposition(
        (
            Stage("parts", replace(op, parts=parts), {"x": "x"}),
            Stage("result", op, {"x": "x", "places": "parts"}),
        )
    )


def decompose_normalize(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Compute mean, deviation and quotient, then apply weight and bias, if any, in a last stage."""
    assert isinstance(op, Normalize)
    x = shapes["x"]
    grouped = op.groups is not None
    source, stages = "x", []
    if grouped:
        source, stages = "groups", [Stage("groups", Reshape(op.grouped_shape(x)), {"x": "x"})]
    axes = (-1,) if grouped else tuple(range(-(op.dims or 0), 0))
    inner: Expr = Arg(0)
    operands = {"x0": source}
    if op.centred:
        stages.append(Stage("mean", Reduce("mean", axes, True), dict(operands)))
        inner, operands = call("sub", Arg(0), Arg(1)), {**operands, "x1": "mean"}
    root = call("sqrt", call("add", Arg(0), op.eps))
    squares = Reduce("mean", axes, True, call("mul", inner, inner), root)
    stages.append(Stage("deviation", squares, dict(operands)))
    divided = call("div", inner, Arg(len(operands)))
    operands[f"x{len(operands)}"] = "deviation"
    stages.append(Stage("normalised", Pointwise(divided), operands))
    last = "normalised"
    if grouped:
        stages.append(Stage("images", Reshape(x), {"x": last}))
        last = "images"
    derived: dict[str, DerivedParameter] = {}
    affine: Expr = Arg(0)
    affine_operands = {"x0": last}
    for function, name in (("mul", "weight"), ("add", "bias")):
        if name in shapes:
            affine = call(function, affine, Arg(len(affine_operands)))
            spread = op.spread(x)
            derived[f"spread {name}"] = DerivedParameter(name, spread, Reshape(spread))
            affine_operands[f"x{len(affine_operands)}"] = f"spread {name}"
    if derived:
        stages.append(Stage("result", Pointwise(affine), affine_operands))
    return Decomposition(tuple(stages), derived)


def decompose_normalize_gradient(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Compute the normalised rows, their reciprocal deviation, the two means of dy, and dy less its
    projections; no stage reads more than three operands.
    """
    assert isinstance(op, NormalizeGradient)
    g, source, square = "dy", {"x0": "x"}, call("square", Arg(0))
    stages = [Stage("rows", Normalize(1, centred=op.centred, eps=op.eps), {"x": "x"})]
    if op.centred:
        stages.append(Stage("mean", Reduce("mean", (1,), True), source))
        source = {**source, "x1": "mean"}
        square = call("square", call("sub", Arg(0), Arg(1)))
    reciprocal = Reduce("mean", (1,), True, square, call("rsqrt", call("add", Arg(0), op.eps)))
    product = call("mul", Arg(0), Arg(1))
    stages.append(Stage("reciprocal deviation", reciprocal, source))
    if "weight" in shapes:
        g = "weighted"
        stages.append(Stage(g, Pointwise(product), {"x0": "dy", "x1": "weight"}))
    if op.centred:
        stages.append(Stage("mean of g", Reduce("mean", (1,), True), {"x0": g}))
        subtract = Pointwise(call("sub", Arg(0), Arg(1)))
        stages.append(Stage("centred", subtract, {"x0": g, "x1": "mean of g"}))
        g = "centred"
    projection = Reduce("mean", (1,), True, product)
    residual = Pointwise(call("sub", Arg(0), call("mul", Arg(1), Arg(2))))
    stages += [
        Stage("projection", projection, {"x0": g, "x1": "rows"}),
        Stage("residual", residual, {"x0": g, "x1": "rows", "x2": "projection"}),
        Stage("result", Pointwise(product), {"x0": "residual", "x1": "reciprocal deviation"}),
    ]
    return Decomposition(tuple(stages))


def decompose_softmax_gradient(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Compute the sum of dy x of each row, then the results."""
    assert isinstance(op, SoftmaxGradient)
    product = formula("where(equal(a, 0.0), 0.0, a * b)")
    result = Pointwise(formula("where(equal(a, c), 0.0, b * (a - c))"))
    reads = {"x0": "dy", "x1": "x"}
    return Decomposition(
        (
            Stage("sum", Reduce("sum", (1,), True, product), reads),
            Stage("result", result, {**reads, "x2": "sum"}),
        )
    )


def decompose_normed_product(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Normalise rows in a stage, then multiply by packed weights."""
    assert isinstance(op, QuantizedMatmul)
    normalize = Normalize(dims=1, centred=False, eps=op.eps)
    product = {"x": "rows", "weight": "weight"}
    return Decomposition(
        (
            Stage("rows", normalize, {"x": "x", "weight": "norm"}),
            Stage("result", op, product, finishes=True),
        )
    )


def decompose_gated_product(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Compute the products by both halves of the weight, then the function of the first result
    times the second.
    """
    assert isinstance(op, QuantizedMatmul)
    both = replace(op, n=2 * op.n, gate="")
    first, second = (Slice((i * op.n,), ((i + 1) * op.n,), (1,), (1,)) for i in range(2))
    product = Pointwise(gated(op.gate))
    return Decomposition(
        (
            Stage("both", both, {name: name for name in shapes}),
            Stage("first", first, {"x": "both"}),
            Stage("second", second, {"x": "both"}),
            Stage("result", product, {"x0": "first", "x1": "second"}, finishes=True),
        )
    )


def decompose_rotated_attention(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Rotate queries in a stage, then attend over the cache."""
    assert isinstance(op, CachedAttention)
    rotary = Rotary(op.heads, op.width, op.context, op.start, op.order)
    reads = {"x": "x", "places": "places", "rotary": "rotary"}
    attention = {"x": "queries", "cache": "cache", "places": "places"}
    return Decomposition(
        (
            Stage("queries", rotary, reads),
            Stage("result", replace(op, start=0), attention),
        )
    )


def decompose_split_keys(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Split the tokens that each query attends to into parts of KEYS, computed in parallel."""
    assert isinstance(op, CachedAttention)
    attributes = {
        attribute.name: getattr(op, attribute.name) for attribute in fields(CachedAttention)
    }
    parts = AttentionParts(**attributes, keys=parameters["KEYS"])
    reads = {name: name for name in ("x", "cache", "places", "rotary") if name in shapes}
    return Decomposition(
        (
            Stage("parts", parts, reads),
            Stage("result", AttentionSum(op.heads, op.width, parts.parts), {"x": "parts"}),
        )
    )


def decompose_attention(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Split the keys into PARTS that are attended to in parallel, and join the results."""
    assert isinstance(op, Attention)
    attributes = {attribute.name: getattr(op, attribute.name) for attribute in fields(Attention)}
    attributes["order"] = TOKENS_FIRST  # the same memory; only dimensions of size 1 may differ
    parts = PartialAttention(**attributes, parts=parameters["PARTS"])
    joined = AttentionSum(op.heads, op.columns, parts.parts, op.zeros)
    return Decomposition(
        (
            Stage("parts", parts, {name: name for name in shapes}),
            Stage("joined", joined, {"x": "parts"}),
            Stage("result", Reshape(op.shape_of(shapes)), {"x": "joined"}),
        )
    )


Decompose = Callable[[Operator, Shapes, Mapping[str, int]], Decomposition]
"""Function of an operator, its operands' shapes and the kernel's parameters."""
DECOMPOSITIONS: Mapping[str, Decompose] = {
    "winograd": decompose_winograd,
    "product": decompose_pointwise_conv,
    "patches": decompose_patches,
    "flipped_convolution": decompose_input_gradient,
    "pointwise_gradient": decompose_pointwise_gradient,
    "weight_parts": decompose_weight_gradient,
    "channel_sums_parts": decompose_channel_sums,
    "parts": decompose_split_k,
    "gated": decompose_gated_product,
    "normed": decompose_normed_product,
    "rotated": decompose_rotated_attention,
    "split_keys": decompose_split_keys,
    "attention_parts": decompose_attention,
    "softmax": decompose_softmax,
    "softmax_gradient": decompose_softmax_gradient,
    "moments": decompose_normalize,
    "moments_gradient": decompose_normalize_gradient,
    "reduce_parts": decompose_reduce,
    "merged_lists": decompose_top_k_by_lists,
    "fourier_product": decompose_fourier,
    "selected_parts": decompose_top_k_by_parts,
}
"""Decompositions by the names that kernels use."""
REGISTERED = "decompose "
"""The prefix of the registry's names of modules with further `DECOMPOSITIONS`."""


def decomposition_names() -> list[str]:
    """Return the names of all decompositions."""
    return sorted((*DECOMPOSITIONS, *registered(REGISTERED)))


def decomposition_named(name: str) -> Decompose:
    """Return the decomposition called `name`. Raises KeyError where there is none."""
    if name in DECOMPOSITIONS:
        return DECOMPOSITIONS[name]
    result: Decompose = module_for(REGISTERED + name).DECOMPOSITIONS[name]
    return result
