"""Softmax, normalisations and long reductions in stages: reductions and pointwise expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glnn.graph.decompose.stage import Derived, Lowered, Stage
from glnn.graph.expression import Arg, Expr, call
from glnn.graph.operator import Operator, Shapes
from glnn.graph.operators.normalization import Normalize, Softmax
from glnn.graph.operators.pointwise import Pointwise
from glnn.graph.operators.reductions import LEAST, Reduce
from glnn.graph.operators.views import Reshape
from glnn.symint import hint


def by_softmax(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """The maximum, the sum of the powers, and their quotients or the logarithms of those."""
    assert isinstance(op, Softmax)
    below = call("sub", Arg(0), Arg(1))
    finish = call("log", Arg(0)) if op.log else Arg(0)
    result = call("sub", below, Arg(2)) if op.log else call("div", call("exp", below), Arg(2))
    total = Reduce("sum", (op.axis,), True, call("exp", below), finish)
    return Lowered(
        (
            Stage("maximum", Reduce("max", (op.axis,), True), {"x0": "x"}),
            Stage("sum", total, {"x0": "x", "x1": "maximum"}),
            Stage("result", Pointwise(result), {"x0": "x", "x1": "maximum", "x2": "sum"}),
        )
    )


def by_parts(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """Split each reduction into at most PARTS that are computed in parallel, and reduce these."""
    assert isinstance(op, Reduce)
    extent = op.depth(shapes)
    parts = max(min(parameters["PARTS"], hint(extent) // LEAST), 1)  # right for any extent
    count = extent if op.kind == "mean" else 0
    whole = Reduce(op.kind, (0,), finish=op.finish, count=count)
    return Lowered(
        (
            Stage("parts", replace(op, parts=parts), {name: name for name in shapes}),
            Stage("whole", whole, {"x0": "parts"}),
        )
    )


def by_moments(op: Operator, shapes: Shapes, parameters: Mapping[str, int]) -> Lowered:
    """Compute mean, deviation and the quotient; weight and bias, where there are some, in a stage
    of their own.
    """
    assert isinstance(op, Normalize)
    x = shapes["x"]
    grouped = op.groups is not None
    source, stages = "x", []
    if grouped:
        source, stages = "groups", [Stage("groups", Reshape(op.grouped(x)), {"x": "x"})]
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
    derived: dict[str, Derived] = {}
    affine: Expr = Arg(0)
    given = {"x0": last}
    for function, name in (("mul", "weight"), ("add", "bias")):
        if name in shapes:
            affine = call(function, affine, Arg(len(given)))
            spread = op.spread(x)
            derived[f"spread {name}"] = Derived(name, spread, Reshape(spread))
            given[f"x{len(given)}"] = f"spread {name}"
    if derived:
        stages.append(Stage("result", Pointwise(affine), given))
    return Lowered(tuple(stages), derived)
