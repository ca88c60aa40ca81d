"""Fuse steps of transformers that are small for few tokens: normalised products, growing caches.

They come behind `fuse_pointwise` and `fuse_siblings`, when gates are in epilogues and the products
of queries, keys and values are one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from glnn.core.symint import same
from glnn.core.types import DType, TensorType
from glnn.graph.expression import Arg, Call, Expr, Scalar, call, replace_part
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import (
    CacheAppend,
    Concat,
    Matmul,
    Normalize,
    NormedMatmul,
    Pointwise,
    Rotary,
    Slice,
)
from glnn.graph.operators.quantized_matmul import GATES
from glnn.graph.operators.views import View
from glnn.graph.passes.graph_rewriter import FusionCheck, GraphRewriter

PLUS, TIMES = (call(name, Arg(0), Arg(1)) for name in ("add", "mul"))


def fuse_normed_products(
    graph: Graph, types: dict[Value, TensorType], is_profitable: FusionCheck
) -> Graph:
    """Return `graph` with normalisations of rows as a part of the products of few rows that read
    them, and the two products of a gate as one, where that pays for all readers of a norm.

    Each product then normalises for itself. What was in its epilogue is pointwise work behind it
    again, for `fuse_pointwise`. The weight and the bias of a layer normalisation go into those of
    the product. types: of every value; those of new ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Normalize):
            _fuse_norm(rewriter, node, is_profitable)
    return rewriter.graph()


@dataclass(frozen=True)
class _Norm:
    """A normalisation of rows, with operands that no run changes beside x."""

    operator: Normalize
    x: Value
    weight: Value | None
    bias: Value | None

    @classmethod
    def match(cls, rewriter: GraphRewriter, node: Node) -> _Norm | None:
        """Return the normalisation that `node` computes; None where no product can do it, too."""
        operator = node.operator
        if not isinstance(operator, Normalize) or operator.dims != 1 or node.epilogue is not None:
            return None
        named = operator.named(node.inputs)
        result = cls(operator, named["x"], named.get("weight"), named.get("bias"))
        parameters = [value for name, value in named.items() if name != "x"]
        if not all(map(rewriter.is_fixed, parameters)):
            return None
        plain = result.weight is not None and result.bias is None
        return result if operator.centred or plain else None


@dataclass(frozen=True)
class _Product:
    """A product that reads normalised rows; with `up` the other one of a gate `gate`."""

    node: Node
    gate: str = ""
    up: Node | None = None

    def operator(self, norm: _Norm) -> NormedMatmul:
        """Return the operator that normalises, too."""
        return NormedMatmul(norm.operator.eps, self.gate, norm.operator.centred)

    def weight_types(self, rewriter: GraphRewriter) -> dict[str, TensorType]:
        """Return the types of the matrices, by operand."""
        nodes = {"weight": self.node} if self.up is None else {"weight": self.node, "up": self.up}
        return {name: rewriter.types[node.reads[1]] for name, node in nodes.items()}

    def replace(self, rewriter: GraphRewriter, norm: _Norm, x: Value) -> None:
        """Have the operator that normalises rows x make what `node` makes."""
        node, operator = self.node, self.operator(norm)
        name, weight = node.name, node.reads[1]
        expr: Expr = Arg(0) if node.epilogue is None else node.epilogue.expr
        extras = node.extras
        if norm.operator.centred:
            if norm.bias is not None:
                expr, extras = self._fold_norm_bias(rewriter, expr, norm.bias)
            if norm.weight is not None:
                weight = rewriter.add(name, Pointwise(TIMES), weight, norm.weight)
            result = rewriter.add(name, operator, x, weight, None)
        else:
            up = None if self.up is None else self.up.reads[1]
            result = rewriter.add(name, operator, x, weight, norm.weight, up)
        if self.up is None and expr != Arg(0):
            result = rewriter.add(name, Pointwise(expr), result, *extras)
        rewriter.replace_by(node, result)
        for value in node.extras:
            rewriter.prune(value)

    def _fold_norm_bias(
        self, rewriter: GraphRewriter, expr: Expr, shift: Value
    ) -> tuple[Expr, tuple[Value, ...]]:
        """Return the epilogue `expr` of the product, and its operands, where `shift` is missing in
        the rows: the product of that goes into the bias, or becomes one.
        """
        node, (n, k) = self.node, rewriter.shape(self.node.reads[1])
        row = rewriter.reshape(node.name, shift, (1, k))
        missing = rewriter.add(node.name, Matmul(), row, node.reads[1])  # (1, n)
        for i, bias in enumerate(node.extras):
            biased, shape = call("add", Arg(0), Arg(i + 1)), rewriter.shape(bias)
            rest = [*replace_part(expr, biased, Scalar(0.0)).parts()]
            once = Arg(0) not in rest and Arg(i + 1) not in rest
            if once and rewriter.is_fixed(bias) and shape[-1:] == (n,) and prod(shape) == n:
                missing = rewriter.reshape(node.name, missing, shape)
                both = rewriter.add(node.name, Pointwise(PLUS), bias, missing)
                return expr, (*node.extras[:i], both, *node.extras[i + 1 :])
        biased = call("add", Arg(0), Arg(len(node.extras) + 1))
        return replace_part(expr, Arg(0), biased), (*node.extras, missing)


def _fuse_norm(rewriter: GraphRewriter, node: Node, is_profitable: FusionCheck) -> None:
    """Have the readers of a normalisation normalise for themselves where that pays."""
    (normed,), norm = node.outputs, _Norm.match(rewriter, node)
    if norm is None:
        return
    readers = list(_readers(rewriter, normed))
    if not readers or not all(_is_product(rewriter, *one) for one in readers):
        return
    nodes = [reader for reader, _ in readers]
    rows, width = rewriter.shape(nodes[0].reads[0]), rewriter.shape(normed)[-1]
    if not all(same(rewriter.shape(one.reads[0])[-1], width) for one in nodes):
        return  # a norm of each head, whose heads a product takes side by side
    types = {"x": TensorType(rows, rewriter.types[norm.x].dtype)}
    alone = [_Product(one) for one in nodes]
    choices = [alone]
    if not norm.operator.centred:
        assert norm.weight is not None
        types["norm"] = rewriter.types[norm.weight]
        choices = [_paired(rewriter, nodes), alone]
    for products in choices:
        if all(
            is_profitable(one.operator(norm), {**types, **one.weight_types(rewriter)})
            for one in products
        ):
            for one in products:
                one.replace(rewriter, norm, rewriter.reshape(one.node.name, norm.x, rows))
            return


def _readers(rewriter: GraphRewriter, value: Value) -> Iterator[tuple[Node, Value]]:
    """Yield the nodes that read `value`, also by way of views, each with what it reads; and such a
    view itself where it is an output.
    """
    for reader in rewriter.readers(value):
        (made, *_) = reader.outputs
        if isinstance(reader.operator, View) and not rewriter.is_output(made):
            yield from _readers(rewriter, made)
        else:
            yield reader, value
    if rewriter.is_output(value) and (maker := rewriter.producer(value)) is not None:
        yield maker, value


def _is_product(rewriter: GraphRewriter, node: Node, rows: Value) -> bool:
    """Return True where `node` multiplies the rows by a matrix that no run changes, and reads them
    for nothing else.
    """
    operator = node.operator
    if not isinstance(operator, Matmul) or operator.prologue is not None:
        return False
    x, weight = node.inputs
    if x is not rows or weight is None or node.reads.count(rows) > 1:
        return False
    float32 = all(rewriter.types[one].dtype is DType.float32 for one in (rows, weight))
    return float32 and rewriter.is_fixed(weight) and len(rewriter.shape(weight)) == 2


def _paired(rewriter: GraphRewriter, nodes: list[Node]) -> list[_Product]:
    """Return products, those of a gate as one."""
    result, taken = [], set[Node]()
    for node in nodes:
        found = _match_gate(rewriter, node)
        if found is not None and found.node in nodes and found.up in nodes:
            result.append(found)
            taken |= {found.node, found.up}
    return [*result, *(_Product(node) for node in nodes if node not in taken)]


def _match_gate(rewriter: GraphRewriter, node: Node) -> _Product | None:
    """Return gate(a) * b, of products a and b of which `node` is the one that multiplies them; None
    where it does something else.
    """
    epilogue = node.epilogue
    if epilogue is None or len(node.extras) != 1 or not isinstance(epilogue.expr, Call):
        return None
    value, maker = rewriter.behind_views(node.extras[0])
    if maker is None or not rewriter.is_read_once(value):
        return None
    if rewriter.shape(value) != rewriter.shape(node.outputs[0]):
        return None
    for gate in GATES:
        opens = _multiplies(epilogue.expr, call(gate, Arg(0)), Arg(1))
        if maker.epilogue is None and opens:
            return _Product(node, gate, maker)
    return None


def _multiplies(expr: Call, *factors: object) -> bool:
    """Return True where `expr` is the product of both factors, in either order."""
    return expr.function == "mul" and expr.arguments in (factors, factors[::-1])


def fuse_cache_updates(
    graph: Graph, types: dict[Value, TensorType], is_profitable: FusionCheck
) -> Graph:
    """Return `graph` with concatenations that put a token behind those of a cache as one operator
    each, which takes it from a row that has more, and rotates it, where that pays.

    types: of every value; those of new ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if appends_token(rewriter, node):
            _fuse_cache_update(rewriter, node, is_profitable)
    return rewriter.graph()


def _fuse_cache_update(rewriter: GraphRewriter, node: Node, is_profitable: FusionCheck) -> None:
    """Replace such a concatenation where that pays."""
    past, token = node.reads
    batch, heads, _, width = rewriter.shape(token)
    rows, maker = rewriter.behind_views(token)
    if maker is None or not rewriter.is_read_once(rows) or maker.epilogue is not None:
        return
    shape, operator = rewriter.shape(rows), maker.operator
    if len(shape) != 2 or not same(shape[0], batch) or not same(shape[1], heads * width):
        return
    table: Value | None = None
    places: Value | None = None
    if isinstance(operator, Rotary):
        if (operator.heads, operator.width) != (heads, width):
            return
        named = operator.named(maker.inputs)
        x, table, places = named["x"], named["rotary"], named["places"]
        made = CacheAppend(heads, width, operator.context, operator.start, operator.order)
    elif isinstance(operator, Slice):
        (x,) = maker.reads
        *_, (start, _, step) = operator.walks(rewriter.shape(x))
        if operator.axes not in ((1,), (-1,)) or step != 1:
            return
        made = CacheAppend(heads, width, 1, start)
    else:
        return
    inputs = x, table, past, places
    known = {name: rewriter.types[value] for name, value in made.named(inputs).items()}
    if all(one.dtype is not DType.float16 for one in known.values()) and is_profitable(made, known):
        rewriter.replace_by(node, rewriter.add(node.name, made, *inputs))


def appends_token(rewriter: GraphRewriter, node: Node) -> bool:
    """Return True where `node` puts a single token of all heads behind a cache, which no other node
    makes.
    """
    if not isinstance(node.operator, Concat) or node.operator.axis not in (2, -2):
        return False
    if len(node.reads) != 2 or node.reads[0] is node.reads[1]:
        return False
    past, token = node.reads
    shape, new = rewriter.shape(past), rewriter.shape(token)
    if len(shape) != 4 or not isinstance(new[1], int) or not isinstance(new[3], int):
        return False
    known = rewriter.producer(past) is None and not rewriter.is_fixed(past)
    return known and same(new[2], 1) and 0 not in shape
