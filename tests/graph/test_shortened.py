"""Every pass that can be left out: it shortens what it is for, and results agree without it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glnn.compiler import Executor
from glnn.core.types import Array, TensorType
from glnn.errors import GlnnError
from glnn.graph.builder import Builder, constant
from glnn.graph.expression import Arg, Scalar, formula
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import (
    Concat,
    Conv2d,
    Expand,
    Gather,
    Identity,
    Matmul,
    Normalize,
    Pad,
    Perceptron,
    Pointwise,
    Pool2d,
    Reduce,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)
from glnn.graph.passes import BackendTraits, Pass, optimize
from glnn.graph.passes.pass_manager import FUSING
from glnn.session import InferenceSession
from tests import oracle

MANY = 8  # operands of a pointwise node


class Net:
    """A graph in the making, of operators called one after the other."""

    def __init__(self, seed: int = 0) -> None:
        self.builder = Builder("net")
        self._numbers = np.random.default_rng(seed)

    def input(self, name: str, *shape: int) -> Value:
        return self.builder.input(name, TensorType(shape))

    def fixed(self, *shape: int) -> Value:
        """A constant of random numbers, none near 0."""
        numbers = self._numbers.uniform(0.2, 1, shape) * self._numbers.choice((-1, 1), shape)
        return constant(numbers.astype(np.float32))

    def __call__(self, operator: Operator, *given: Value) -> Value:
        return self.builder.add(operator, *given, name=operator.name)[0]

    def of(self, text: str, *given: Value | float) -> Value:
        """A formula of values and numbers, a node for it all."""
        values = [one for one in given if isinstance(one, Value)]
        places = iter(range(len(values)))
        arguments = (Arg(next(places)) if isinstance(g, Value) else Scalar(g) for g in given)
        return self(Pointwise(formula(text)(*arguments)), *values)

    def graph(self, *outputs: Value) -> Graph:
        return self.builder.graph(outputs)


def number(value: float) -> Value:
    return constant(np.array(value, np.float32))


def layer_norm(net: Net, x: Value) -> Value:
    """As exporters write it for operator sets that have none."""
    mean = net(Reduce("mean", (-1,), True), x)
    apart = net.of("a - b", x, mean)
    variance = net(Reduce("mean", (-1,), True), net.of("pow(a, b)", apart, number(2.0)))
    root = net.of("sqrt(a)", net.of("a + b", variance, number(1e-5)))
    scaled = net.of("a * b", net.fixed(x.type.shape[-1]), net.of("a / b", apart, root))
    return net.of("a + b", scaled, net.fixed(x.type.shape[-1]))


def layer_norm_multiplied_out(net: Net, x: Value) -> Value:
    """As TensorFlow writes it."""
    mean = net(Reduce("mean", (-1,), True), x)
    variance = net(Reduce("mean", (-1,), True), net.of("square(a)", net.of("a - b", x, mean)))
    factor = net.of("a * b", net.of("rsqrt(a + b)", variance, 1e-3), net.fixed(x.type.shape[-1]))
    moved = net.of("a - b", net.fixed(x.type.shape[-1]), net.of("a * b", mean, factor))
    return net.of("a + b", net.of("a * b", x, factor), moved)


def rms_norm(net: Net, x: Value) -> Value:
    square = net(Reduce("mean", (-1,), True), net.of("pow(a, 2.0)", x))
    root = net.of("1.0 / sqrt(a)", net.of("a + 1e-6", square))
    return net.of("a * b", net.of("a * b", x, root), net.fixed(x.type.shape[-1]))


def softmax(net: Net, x: Value) -> Value:
    powers = net.of("exp(a)", net.of("a - b", x, net(Reduce("max", (-1,), True), x)))
    return net.of("a / b", powers, net(Reduce("sum", (-1,), True), powers))


def log_softmax(net: Net, x: Value) -> Value:
    below = net.of("a - b", x, net(Reduce("max", (1,), True), x))
    total = net(Reduce("sum", (1,), True), net.of("exp(a)", below))
    return net.of("a - b", below, net.of("log(a)", total))


def linear(net: Net, x: Value, size: int) -> Value:
    """As ONNX's MatMul and Add of what has three dimensions."""
    *rows, k = x.type.shape
    flat = net(Reshape((int(np.prod(rows)), k)), x)
    product = net(Reshape((*rows, size)), net(Matmul(), flat, net.fixed(size, k)))
    return net.of("a + b", product, net.fixed(size))


def attention(net: Net, x: Value, heads: int = 2) -> Value:
    """Queries, keys and values by one product, cut by indices; both factors scaled."""
    n, t, c = x.type.shape
    d = c // heads
    joined = net(Reshape((n, t, 3, heads, d)), linear(net, x, 3 * c))
    turned = net(Transpose((2, 0, 3, 1, 4)), joined)
    index = [constant(np.array(i, np.int64)) for i in range(3)]
    q, k, v = (net(Gather(0), turned, i) for i in index)
    q, k = net.of("a * b", q, 0.5), net.of("a * b", net(Transpose((0, 1, 3, 2)), k), number(0.5))
    keys = net(Reshape((n * heads, t, d)), net(Transpose((0, 1, 3, 2)), k))
    scores = net(Matmul(), net(Reshape((n * heads * t, d)), q), keys)
    weights = net(Softmax(-1), net(Reshape((n, heads, t, t)), scores))
    values = net(Reshape((n * heads, d, t)), net(Transpose((0, 1, 3, 2)), v))
    found = net(Matmul(), net(Reshape((n * heads * t, t)), weights), values)
    merged = net(Transpose((0, 2, 1, 3)), net(Reshape((n, heads, t, d)), found))
    return net.of("a + b", linear(net, net(Reshape((n, t, c)), merged), c), x)


def normed(net: Net, x: Value) -> Value:
    """A batch normalisation as a multiplication and a sum."""
    c = x.type.shape[1]
    return net.of("a + b", net.fixed(1, c, 1, 1), net.of("a * b", x, net.fixed(c, 1, 1)))


def conv(net: Net, x: Value, o: int, kernel: int = 1, **options: object) -> Value:
    groups = int(options.get("groups", 1))  # type: ignore[call-overload]
    weight = net.fixed(o, x.type.shape[1] // groups, kernel, kernel)
    return net(Conv2d(**options), x, weight)  # type: ignore[arg-type]


def excited(net: Net, x: Value) -> Value:
    """A block with squeeze and excitation: its pad, its activations in pieces, its pool a mean."""
    padded = net(Pad((0, 0, 1, 1), (0, 0, 1, 1)), x)
    y = normed(net, conv(net, padded, 8, 3))
    y = net.of("a * b", y, net.of("clip(a / 6.0 + 0.5, 0.0, 1.0)", y))
    mean = net(Reduce("mean", (2, 3), True), y)
    gate = net.of("sigmoid(a)", conv(net, net.of("a * sigmoid(a)", conv(net, mean, 4)), 8))
    return normed(net, net.of("a * b", y, gate))


def normed_first(net: Net, x: Value) -> Value:
    """A normalisation and a ReLU before a convolution, as in a dense block."""
    return conv(net, net.of("relu(a)", normed(net, net(Pool2d(), x))), 8)


def shuffled(net: Net, x: Value) -> Value:
    """Channels of two halves in turns, of which each half goes its own way (Ma et al. 2018)."""
    n, c, h, w = x.type.shape
    both = net(Concat(1), conv(net, x, c // 2), conv(net, x, c // 2))
    turned = net(Transpose((0, 2, 1, 3, 4)), net(Reshape((n, 2, c // 2, h, w)), both))
    mixed = net(Reshape((n, c, h, w)), turned)
    kept = net(Slice((0,), (c // 2,), (1,), (1,)), mixed)
    other = net(Slice((c // 2,), (c,), (1,), (1,)), mixed)
    return net(Concat(1), kept, conv(net, other, c // 2))


def dense(net: Net, x: Value) -> Value:
    """Each layer of all before it (Huang et al. 2017)."""
    given = [x]
    for _ in range(3):
        joined = net(Concat(1), *given) if len(given) > 1 else x
        given.append(conv(net, net.of("relu(a)", joined), 4))
    return net(Concat(1), *given)


def next_block(net: Net, x: Value) -> Value:
    """Channels last within, by transpositions (Liu et al. 2022)."""
    c = x.type.shape[1]
    y = net(Transpose((0, 2, 3, 1)), conv(net, x, c, 3, padding=(1, 1, 1, 1), groups=c))
    y = linear(net, gelu(net, linear(net, layer_norm(net, y), 2 * c)), c)
    return net.of("a + b", x, net(Transpose((0, 3, 1, 2)), net.of("a * b", y, net.fixed(c))))


def gelu(net: Net, x: Value) -> Value:
    below = net.of("erf(a)", net.of("a / b", x, number(2**0.5)))
    return net.of("a * b", net.of("a * b", x, net.of("1.0 + a", below)), number(0.5))


def silu(net: Net, x: Value) -> Value:
    return net.of("a * b", x, net.of("sigmoid(a)", x))


def gelu_tanh(net: Net, x: Value) -> Value:
    cubic = net.of("a + 0.044715 * b", x, net.of("pow(a, b)", x, number(3.0)))
    tanh = net.of("tanh(a * 0.7978845608028654)", cubic)
    return net.of("a * b", net.of("0.5 * a", x), net.of("1.0 + a", tanh))


def hardswish(net: Net, x: Value) -> Value:
    inner = net.of("minimum(maximum(a + 3.0, 0.0), 6.0)", x)
    return net.of("a / 6.0", net.of("a * b", x, inner))


def relu6(net: Net, x: Value) -> Value:
    return net.of("minimum(a, b)", net.of("maximum(a, b)", x, number(0.0)), number(6.0))


def relu6_by_clip(net: Net, x: Value) -> Value:
    return net.of("clip(a, 0.0, 6.0)", x)


def nearly_relu6(net: Net, x: Value) -> Value:
    return net.of("minimum(a, b)", net.of("maximum(a, b)", x, number(0.0)), number(5.99999))


def mish(net: Net, x: Value) -> Value:
    return net.of("a * tanh(b)", x, net.of("log(1.0 + exp(a))", x))


def idle(net: Net, x: Value) -> Value:
    """What changes nothing, is computed twice, or is not needed."""
    x = net(Identity(), net(Transpose((0, 1, 2)), net(Slice((0,), (99,), (1,), (1,)), x)))
    net.of("exp(a)", x)
    mean = [net(Reduce("max", (1,), True), net(Pad((0, 0, 0), (0, 0, 0)), x)) for _ in range(2)]
    return net.of("a + b * c", mean[0], net(Expand(x.type.shape), x), mean[1])


def idle_between(net: Net, x: Value) -> Value:
    return net.of("exp(a)", net(Identity(), net.of("relu(a)", x)))


Block = Callable[[Net, Value], Value]
ROWS = (2, 5, 8)
IMAGE = (2, 8, 6, 5)
ON_ROWS: tuple[Block, ...] = (
    *(layer_norm, layer_norm_multiplied_out, rms_norm, softmax, log_softmax, attention, idle),
    *(gelu, gelu_tanh, silu, hardswish, mish, relu6, relu6_by_clip, nearly_relu6),
)
ON_IMAGES: tuple[Block, ...] = (excited, shuffled, dense, next_block)


def everything() -> tuple[Graph, dict[str, Array]]:
    """All blocks in a graph, and what it is given."""
    net = Net()
    rows, image = net.input("rows", *ROWS), net.input("image", *IMAGE)
    outputs = [block(net, rows) for block in ON_ROWS] + [block(net, image) for block in ON_IMAGES]
    numbers = np.random.default_rng(1)
    feeds = {name: numbers.normal(size=shape) for name, shape in (("rows", ROWS), ("image", IMAGE))}
    return net.graph(*outputs), {name: x.astype(np.float32) for name, x in feeds.items()}


@pytest.mark.parametrize("backend", ["cpu", "compute"])
@pytest.mark.parametrize(
    "without",
    [(), *((one.value,) for one in Pass), tuple(Pass), pytest.param(FUSING, id="fusing")],
    ids=str,
)
def test_results_agree_without(without, backend) -> None:
    graph, feeds = everything()
    found = Executor(graph, backend, without=without).run(feeds)
    expected = graph.reference(*(x.astype(np.float64) for x in feeds.values()))
    for value, right in zip(graph.outputs, expected, strict=True):
        assert oracle.error(found[value.name], right) <= 1e-5, value.name


def steps(block: Block, shape: tuple[int, ...], *without: Pass) -> list[Node]:
    """The nodes of `block` that a run computes, views aside."""
    net = Net()
    graph = net.graph(block(net, net.input("x", *shape)))
    types = graph.infer_types({"x": TensorType(shape)})
    graph = optimize(
        graph, types, BackendTraits(MANY, is_profitable=_of_layers), frozenset(without)
    )
    fixed = graph.fixed
    computed = [node for node in graph.nodes if node.outputs[0] not in fixed]
    return [node for node in computed if not node.operator.view]


def _of_layers(operator: Operator, types: object) -> bool:
    return isinstance(operator, Perceptron)


def written(node: Node) -> str:
    """What a node is: its operator, or its expression."""
    operator = node.operator
    return operator.expr.text() if isinstance(operator, Pointwise) else type(operator).__name__


@pytest.mark.parametrize(
    ("block", "shape", "expected"),
    [
        (layer_norm, ROWS, ["Normalize"]),
        (layer_norm_multiplied_out, ROWS, ["Normalize"]),
        (rms_norm, ROWS, ["Normalize"]),
        (softmax, ROWS, ["Softmax"]),
        (log_softmax, ROWS, ["Softmax"]),
        *((one, ROWS, [f"{one.__name__}(#0)"]) for one in (gelu, gelu_tanh, silu, hardswish, mish)),
        (relu6, ROWS, ["relu6(#0)"]),
        (relu6_by_clip, ROWS, ["relu6(#0)"]),
        (nearly_relu6, ROWS, ["minimum(maximum(#0, f0), f1)"]),
        (
            attention,
            ROWS,
            # A product, a move for each of its parts, two products, a move back, a product.
            [*["Matmul"] * 4, *["Rearrange"] * 3, "Softmax", "Transpose"],
        ),
        (excited, IMAGE, ["Conv2d", "Pool2d", "Perceptron", "add(mul(mul(#0, #1), #2), #3)"]),
        (
            shuffled,
            IMAGE,
            ["Conv2d", "Conv2d", "Concat", "Rearrange", "Rearrange", "Conv2d", "Concat"],
        ),
        (idle, ROWS, ["Reduce", "add(#0, mul(#0, #1))"]),
        # Two transpositions, which layouts make free, and no other step for them.
        (
            next_block,
            IMAGE,
            ["Conv2d", "Transpose", "Normalize", "Matmul", "Transpose", "Matmul", "Transpose"],
        ),
    ],
)
def test_blocks_take_few_steps(block, shape, expected) -> None:
    assert sorted(map(written, steps(block, shape))) == sorted(expected)


def test_concatenations_share_what_they_begin_with() -> None:
    joined = [node for node in steps(dense, IMAGE) if isinstance(node.operator, Concat)]
    assert [len(node.inputs) for node in joined] == [2, 2, 2]


SHORTENS: dict[Pass, tuple[Block, tuple[int, ...]]] = {
    Pass.IDENTITIES: (idle_between, ROWS),
    Pass.COMMON: (idle, ROWS),
    Pass.LAYER_NORM: (layer_norm, ROWS),
    Pass.RMS_NORM: (rms_norm, ROWS),
    Pass.SOFTMAX: (softmax, ROWS),
    Pass.PADS: (excited, IMAGE),
    Pass.PRODUCTS: (attention, ROWS),
    Pass.SINK: (attention, ROWS),
    Pass.MOVES: (attention, ROWS),
    Pass.FUSE: (attention, ROWS),
    Pass.PERCEPTRON: (excited, IMAGE),
    Pass.PROLOGUE: (normed_first, IMAGE),
}


@pytest.mark.parametrize("one", SHORTENS)
def test_it_takes_more_steps_without(one) -> None:
    block, shape = SHORTENS[one]
    assert len(steps(block, shape, one)) > len(steps(block, shape))


def folded(net: Net, x: Value) -> Value:
    return normed(net, conv(net, x, 8, 3))


def folded_in_front(net: Net, x: Value) -> Value:
    return conv(net, normed(net, net(Pool2d(), x)), 8, 2)


@pytest.mark.parametrize("block", [folded, folded_in_front])
def test_a_batch_norm_goes_into_the_weights_beside_it(block) -> None:
    (found,) = (node for node in steps(block, IMAGE) if isinstance(node.operator, Conv2d))
    assert found.epilogue is not None and found.epilogue.expr.text() == "add(#0, #1)"
    assert not any(isinstance(node.operator, Pointwise) for node in steps(block, IMAGE))
    net = Net()
    graph = net.graph(block(net, net.input("x", *IMAGE)))
    x = np.random.default_rng(2).normal(size=IMAGE)
    (expected,) = graph.reference(x)
    (got,) = Executor(graph, "cpu").run({"x": x.astype(np.float32)}).values()
    assert oracle.error(got, expected) <= 1e-6


def test_a_shift_in_front_of_padding_stays() -> None:
    def block(net: Net, x: Value) -> Value:
        return conv(net, normed(net, net(Pool2d(), x)), 8, 3, padding=(1, 1, 1, 1))

    assert [written(node) for node in steps(block, IMAGE)][1].startswith("add(")


def test_numbers_that_are_spread_are_not_computed_over_and_over() -> None:
    def block(net: Net, x: Value) -> Value:
        return net.of("tanh(a + b)", net.of("exp(a)", net(Reduce("max", (2,), True), x)), x)

    first, last = steps(block, ROWS)
    assert first.epilogue is not None and first.epilogue.expr == formula("exp(a)")
    assert last.operator == Pointwise(formula("tanh(a + b)"))


def test_what_is_no_layer_norm_stays() -> None:
    def another_axis(net: Net, x: Value) -> Value:
        mean = net(Reduce("mean", (-1,), True), x)
        apart = net.of("a - b", x, mean)
        variance = net(Reduce("mean", (1,), True), net.of("square(a)", apart))
        return net.of("a / sqrt(b + 1e-5)", apart, variance)

    def another_mean(net: Net, x: Value) -> Value:
        mean = net(Reduce("mean", (-1,), True), net.of("a * 2.0", x))
        apart = net.of("a - b", x, mean)
        variance = net(Reduce("mean", (-1,), True), net.of("square(a)", apart))
        return net.of("a / sqrt(b + 1e-5)", apart, variance)

    for block in (another_axis, another_mean):
        operators = [node.operator for node in steps(block, ROWS)]
        assert not any(isinstance(one, Normalize) and one.centred for one in operators)


@pytest.mark.parametrize(
    ("pad", "pool", "taken"),
    [
        (Pad((0, 0, 1, 1), (0, 0, 1, 1)), Pool2d("average", (3, 3), (1, 1)), True),
        (Pad((0, 0, 1, 1), (0, 0, 1, 1)), Pool2d("max", (3, 3), (1, 1)), False),
        (Pad((0, 0, 1, 1), (0, 0, 1, 1), fill=-np.inf), Pool2d("max", (3, 3), (1, 1)), True),
        (Pad((0, 1, 1, 1), (0, 0, 1, 1)), Pool2d("average", (3, 3), (1, 1)), False),
        (Pad((0, 0, 2, 2), (0, 0, 2, 2)), Pool2d("average", (3, 3), (1, 1)), False),
        (Pad((0, 0, 1, 1), (0, 0, 1, 1), "reflect"), Pool2d("average", (3, 3), (1, 1)), False),
    ],
)
def test_pads_go_into_pools_that_see_no_difference(pad, pool, taken) -> None:
    def block(net: Net, x: Value) -> Value:
        return net(pool, net(pad, x))

    found = steps(block, IMAGE)
    assert len(found) == (1 if taken else 2)
    net = Net()
    graph = net.graph(block(net, net.input("x", *IMAGE)))
    x = np.random.default_rng(3).normal(size=IMAGE)
    (expected,) = graph.reference(x)
    (got,) = Executor(graph, "cpu").run({"x": x.astype(np.float32)}).values()
    assert oracle.error(got, expected) <= 1e-6


@pytest.mark.parametrize("backend", ["compute", "feedback"])
@pytest.mark.parametrize("columns", [1, 3])
def test_a_softmax_takes_padded_rows(backend, columns) -> None:
    net = Net()
    rows = net(Matmul(), net.input("x", 4, 8), net.fixed(columns, 8))
    graph = net.graph(net(Softmax(-1), net(Reshape((2, 2, columns)), rows)))
    x = np.random.default_rng(4).normal(size=(4, 8))
    (expected,) = graph.reference(x)
    (got,) = Executor(graph, backend).run({"x": x.astype(np.float32)}).values()
    assert oracle.error(got, expected) <= 1e-6


@pytest.mark.parametrize("wrong", ["fold", ("fold", "folds"), (7,), None])
def test_names_of_passes_are_checked(wrong) -> None:
    with pytest.raises(GlnnError, match="without"):
        InferenceSession("lenet", "cpu", without=wrong)
    InferenceSession("lenet", "cpu", without=("fold", "layer_norm"))


@pytest.mark.parametrize("text", ["a * b", "a + b", "b + a", "square(a) * b"])
def test_sums_and_products_of_very_many(text) -> None:
    """As gradients are, through many layers or steps."""
    net = Net()
    y = net.input("y", 2, 3)
    for i in range(1100):
        y = net.of(text, y, net.input(f"x{i}", 2, 3))
    graph = net.graph(y)
    types = {value: value.type for node in graph.nodes for value in node.outputs}
    types |= {value: value.type for value in graph.inputs}
    found = optimize(graph, types, BackendTraits(MANY), frozenset({Pass.FUSE}))
    assert len(found.nodes) == len(graph.nodes)


def test_what_is_near_gelu_stays(rng) -> None:
    """Of the square of the cubic the tangent is another function."""
    net = Net()
    x = net.input("x", 2, 3)
    cubic = "(a + 0.044715 * a * a * a)"
    y = net.of(f"0.5 * a * (1.0 + tanh(0.7978845608 * {cubic} * {cubic}))", x)
    given = rng((2, 3))
    (found,) = Executor(net.graph(y), "cpu").run({"x": given}).values()
    at = given.astype(np.float64)
    inner = 0.7978845608 * (at + 0.044715 * at**3) ** 2
    np.testing.assert_allclose(found, 0.5 * at * (1 + np.tanh(inner)), 1e-5, 1e-5)
