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
    """A stage: an op that computes an intermediate or the final result of a whole op.

    operands: for each of its operands the name of an operand of the whole op, of a derived
    parameter, or of an earlier stage. kernel: the one to take; None leaves the choice open.
    finishes: whether the whole op's epilogue is its.
    """

    name: str
    op: Operator
    operands: Mapping[str, str]
    kernel: str | None = None
    finishes: bool = False


@dataclass(frozen=True)
class DerivedParameter:
    """An operand made of the fixed one called `source`, by the host, once for each weight.

    transposed: True where it is a matrix whose transpose is the source's memory, so that products
    take it as that lies.
    """

    source: str
    shape: Shape
    operator: Operator
    transposed: bool = False

    @property
    def moves(self) -> bool:
        """True where each run moves numbers for it, if runs change the source."""
        return not (self.operator.view or self.transposed)


@dataclass(frozen=True)
class Decomposition:
    """The stages that compute an op: the last gives its result, one takes its epilogue.

    epilogue_view: the view in which that stage sees the epilogue's operands that lie as the result.
    """

    stages: tuple[Stage, ...]
    derived: Mapping[str, DerivedParameter] = field(default_factory=dict)
    epilogue_view: Operator | None = None


MOST_PARTIAL_SUMS = 1 << 20  # numbers of the parts of a gradient by a weight


def decompose_winograd(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Return F(TILE x TILE, 3 x 3) of Lavin and Gray 2016: transform, (TILE + 2)^2 products,
    transform.

    PARTS: of the tiles, one after the other in the same memory, where there are as many tiles.
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
        part, whole = ((first, end - first), f" {i + 1}") if count > 1 else (None, "")
        ahead = WinogradInput(form.tile, op.padding, part)
        back = WinogradOutput((n, oh, ow), form.tile, part, mode)
        reads = {"x": f"products{whole}", **({"into": stages[-1].name} if stages else {})}
        stages += [
            Stage(f"tiles{whole}", ahead, {"x": "x"}),
            Stage(f"products{whole}", Matmul(), {"x": f"tiles{whole}", "weight": "transformed"}),
            Stage(f"result{whole}", back, reads, finishes=True),
        ]
    return Decomposition(
        tuple(stages),
        {"transformed": DerivedParameter("weight", weight, WinogradWeights(form.tile))},
    )


def decompose_pointwise_conv(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """A 1 x 1 convolution of stride 1: the pixels' channels by the weights."""
    assert isinstance(op, Conv2d)
    n, _, h, w = op.shape_of(shapes)
    beside = {
        name: f"{name} rows" if name in op.by_image() else name for name in op.prologue_operands
    }
    operands = {"x": "rows", "weight": "matrix", **beside}
    return Decomposition(
        (
            Stage("rows", Rows(), {"x": "x"}),
            *(Stage(beside[name], Rows(), {"x": name}) for name in op.by_image()),
            Stage("product", Matmul(op.prologue), operands, finishes=True),
            Stage("result", Images((n, h, w)), {"x": "product"}),
        ),
        {"matrix": kernel_matrix(shapes)},
        Rows(),
    )


def decompose_patches(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Decomposition:
    """The same with any kernels.

    KERNELS_FIRST: the kernels by the patches, which gives the transposed result.
    """
    return decompose_by_patches(op, shapes, bool(parameters["KERNELS_FIRST"]))


def decompose_weight_gradient(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Return at most PARTS parts of a gradient by a weight, computed in parallel, of LEAST pixels
    or more, and their sum.

    CHANNELS_LAST: products by the kernel of images that lie so, also where these have to be laid so
    first.
    """
    assert isinstance(op, Conv2dWeightGradient)
    o, share, *kernel = op.shape_of(shapes)
    room = MOST_PARTIAL_SUMS // prod((o, share, *kernel))
    parts = min(parameters["PARTS"], room, op.depth(shapes) // parameters["LEAST"])
    parts = max(parts, 1)
    named = None
    if parameters.get("CHANNELS_LAST"):
        named = "gemm_tiled" if op.groups == 1 else None
    first = Stage("parts", replace(op, parts=parts), {"x": "x", "dy": "dy"}, named)
    if parts == 1:
        whole = Reshape((o, share, *kernel))
        return Decomposition((first, Stage("result", whole, {"x": "parts"})))
    return Decomposition((first, Stage("result", Reduce("sum", (0,)), {"x0": "parts"})))


def decompose_input_gradient(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """A convolution of the gradient by the result, where that has strides of 1.

    Its weight is the other one upside down and inside out, with inputs for outputs.
    """
    assert isinstance(op, Conv2dInputGradient)
    shape = shapes["weight"]
    o, c, kh, kw = (Axis(size, axis) for axis, size in enumerate(shape))
    flipped = tuple(Axis(one.size, one.axis, one.size - 1, -1) for one in (kh, kw))
    reach = tuple(d * (k - 1) for d, k in zip(op.dilation, shape[2:], strict=True))
    top, left, bottom, right = (r - p for r, p in zip(2 * reach, op.padding, strict=True))
    convolution = Conv2d(padding=(top, left, bottom, right), dilation=op.dilation)
    moved = Rearrange(shape, ((c,), (o,), *((one,) for one in flipped)))
    stage = Stage("result", convolution, {"x": "dy", "weight": "flipped"}, finishes=True)
    derived = DerivedParameter("weight", (shape[1], shape[0], *shape[2:]), moved)
    return Decomposition((stage,), {"flipped": derived})


def decompose_pointwise_gradient(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """The gradient of a 1 x 1 convolution of stride 1: pixels of dy by the transposed weights."""
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
    """The patches by the kernels or, where these come `first`, the other way round.

    gather, product: the kernels that these stages take.
    """
    assert isinstance(op, Conv2d)
    n, _, oh, ow = op.shape_of(shapes)
    kernel = shapes["weight"][2:]
    im2row = Im2row((kernel[0], kernel[1]), op.stride, op.padding, op.dilation)
    factors = ("matrix", "im2row") if first else ("im2row", "matrix")
    operands = dict(zip(("x", "weight"), factors, strict=True))
    transposed = [Stage("transposition", Reorder("R4", "C"), {"x": "product"})] if first else []
    whole = "transposition" if first else "product"
    return Decomposition(
        (
            Stage("im2row", im2row, {"x": "x"}, gather),
            Stage("product", Matmul(), operands, product, finishes=True),
            *transposed,
            Stage("result", Images((n, oh, ow), first), {"x": whole}),
        ),
        {"matrix": kernel_matrix(shapes)},
    )


def kernel_matrix(shapes: Shapes) -> DerivedParameter:
    """The weights with a row for each output channel, in the order of Im2row's columns."""
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
    """The maximum, the sum of exp(x - maximum), and the quotients or the logarithms of those."""
    assert isinstance(op, Softmax)
    below = call("sub", Arg(0), Arg(1))
    finish = call("log", Arg(0)) if op.log else Arg(0)
    result = call("sub", below, Arg(2)) if op.log else call("div", call("exp", below), Arg(2))
    total = Reduce("sum", (op.axis,), True, call("exp", below), finish)
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
    parts = max(min(parameters["PARTS"], hint(extent) // LEAST), 1)  # right for any extent
    count = extent if op.kind == "mean" else 0
    whole = Reduce(op.kind, (0,), finish=op.finish, count=count)
    return Decomposition(
        (
            Stage("parts", replace(op, parts=parts), {name: name for name in shapes}),
            Stage("whole", whole, {"x0": "parts"}, finishes=True),
        )
    )


def decompose_channel_sums(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Return the sums of at most PARTS equal parts of the pixels, of LEAST or more, computed in
    parallel, and what they are together.
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
    """Merge lists of one number, of two, and so on, of which more than `k` are never kept."""
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
    """Return the first numbers of at most PARTS parts of a row, and the first of these."""
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
    """Compute mean, deviation and the quotient; weight and bias, where there are some, in a stage
    of their own.
    """
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
    """Compute the normalised rows, their reciprocal deviation, the gradient's two means, and what
    is left of it; no stage reads more than three operands.
    """
    assert isinstance(op, NormalizeGradient)
    g, source, square = "dy", {"x0": "x"}, call("square", Arg(0))
    stages = [Stage("rows", Normalize(1, centred=op.centred, eps=op.eps), {"x": "x"})]
    if op.centred:
        stages.append(Stage("mean", Reduce("mean", (1,), True), source))
        source = {**source, "x1": "mean"}
        square = call("square", call("sub", Arg(0), Arg(1)))
    over = Reduce("mean", (1,), True, square, call("rsqrt", call("add", Arg(0), op.eps)))
    product = call("mul", Arg(0), Arg(1))
    stages.append(Stage("over", over, source))
    if "weight" in shapes:
        g = "weighted"
        stages.append(Stage(g, Pointwise(product), {"x0": "dy", "x1": "weight"}))
    if op.centred:
        stages.append(Stage("mean of g", Reduce("mean", (1,), True), {"x0": g}))
        less = Pointwise(call("sub", Arg(0), Arg(1)))
        stages.append(Stage("centred", less, {"x0": g, "x1": "mean of g"}))
        g = "centred"
    along = Reduce("mean", (1,), True, product)
    left = Pointwise(call("sub", Arg(0), call("mul", Arg(1), Arg(2))))
    stages += [
        Stage("along", along, {"x0": g, "x1": "rows"}),
        Stage("left", left, {"x0": g, "x1": "rows", "x2": "along"}),
        Stage("result", Pointwise(product), {"x0": "left", "x1": "over"}),
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
    """Rows normalised by a launch of their own, then the product with packed weights."""
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
    """The products of both halves, then the function of the first half times the other."""
    assert isinstance(op, QuantizedMatmul)
    whole = replace(op, n=2 * op.n, gate="")
    first, second = (Slice((i * op.n,), ((i + 1) * op.n,), (1,), (1,)) for i in range(2))
    product = Pointwise(gated(op.gate))
    return Decomposition(
        (
            Stage("both", whole, {name: name for name in shapes}),
            Stage("first", first, {"x": "both"}),
            Stage("second", second, {"x": "both"}),
            Stage("result", product, {"x0": "first", "x1": "second"}, finishes=True),
        )
    )


def decompose_rotated_attention(
    op: Operator, shapes: Shapes, parameters: Mapping[str, int]
) -> Decomposition:
    """Queries rotated by a launch of their own, then attention over the cache."""
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
    """Split the tokens that each sees into parts of KEYS, which are computed in parallel."""
    assert isinstance(op, CachedAttention)
    attributes = {one.name: getattr(op, one.name) for one in fields(CachedAttention)}
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
    attributes = {one.name: getattr(op, one.name) for one in fields(Attention)}
    attributes["order"] = TOKENS_FIRST  # as it lies, though dimensions of 1 may stand elsewhere
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
"""The beginning of what the registry calls modules with further `DECOMPOSITIONS`."""


def decomposition_names() -> list[str]:
    """Return the names of all decompositions."""
    return sorted((*DECOMPOSITIONS, *registered(REGISTERED)))


def decomposition_named(name: str) -> Decompose:
    """Return the decomposition called `name`. Raises KeyError where there is none."""
    if name in DECOMPOSITIONS:
        return DECOMPOSITIONS[name]
    result: Decompose = module_for(REGISTERED + name).DECOMPOSITIONS[name]
    return result
