"""Fuse steps of transformers that are small for few tokens: normalised products, growing caches.

These passes run after `fuse_pointwise` and `fuse_siblings`, when gates are in epilogues and the
products of queries, keys and values are one.
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
    """Return `graph` with normalisations of rows fused into the products of few rows that read
    them, and the two products of a gate into one, where that pays for all readers of a norm.

    Each product then normalises its rows itself. Its epilogue becomes a pointwise node again, for
    `fuse_pointwise`. The weight and the bias of a layer normalisation are folded into those of the
    product. types: of every value; types of new values are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Normalize):
            _fuse_norm(rewriter, node, is_profitable)
    return rewriter.graph()


@dataclass(frozen=True)
class _Norm:
    """A normalisation of rows, whose operands but x are fixed."""

    operator: Normalize
    x: Value
    weight: Value | None
    bias: Value | None

    @classmethod
    def match(cls, rewriter: GraphRewriter, node: Node) -> _Norm | None:
        """Return the normalisation that `node` computes; None where no product can compute it."""
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
    """A product that reads normalised rows; of a gated pair, `up` is the other product and `gate`
    the function of this one.
    """

    node: Node
    gate: str = ""
    up: Node | None = None

    def operator(self, norm: _Norm) -> NormedMatmul:
        """Return the operator that normalises and multiplies."""
        return NormedMatmul(norm.operator.eps, self.gate, norm.operator.centred)

    def weight_types(self, rewriter: GraphRewriter) -> dict[str, TensorType]:
        """Return the types of the matrices, by operand."""
        nodes = {"weight": self.node} if self.up is None else {"weight": self.node, "up": self.up}
        return {name: rewriter.types[node.reads[1]] for name, node in nodes.items()}

    def replace(self, rewriter: GraphRewriter, norm: _Norm, x: Value) -> None:
        """Replace `node` by the operator that also normalises the rows `x`."""
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
        self, rewriter: GraphRewriter, expr: Expr, norm_bias: Value
    ) -> tuple[Expr, tuple[Value, ...]]:
        """Return the epilogue `expr` and its operands for rows without `norm_bias`: its product by
        the weight is added to the product's bias, or becomes the bias.
        """
        node, (n, k) = self.node, rewriter.shape(self.node.reads[1])
        row = rewriter.reshape(node.name, norm_bias, (1, k))
        shift = rewriter.add(node.name, Matmul(), row, node.reads[1])  # (1, n)
        for i, bias in enumerate(node.extras):
            biased, shape = call("add", Arg(0), Arg(i + 1)), rewriter.shape(bias)
            other_parts = [*replace_part(expr, biased, Scalar(0.0)).parts()]
            is_bias = Arg(0) not in other_parts and Arg(i + 1) not in other_parts
            if is_bias and rewriter.is_fixed(bias) and shape[-1:] == (n,) and prod(shape) == n:
                shift = rewriter.reshape(node.name, shift, shape)
                sum = rewriter.add(node.name, Pointwise(PLUS), bias, shift)
                return expr, (*node.extras[:i], sum, *node.extras[i + 1 :])
        biased = call("add", Arg(0), Arg(len(node.extras) + 1))
        return replace_part(expr, Arg(0), biased), (*node.extras, shift)


def _fuse_norm(rewriter: GraphRewriter, node: Node, is_profitable: FusionCheck) -> None:
    """Fuse a normalisation into all its readers where that pays."""
    (normed,), norm = node.outputs, _Norm.match(rewriter, node)
    if norm is None:
        return
    readers = list(_readers(rewriter, normed))
    if not readers or not all(_is_product(rewriter, *reader) for reader in readers):
        return
    nodes = [reader for reader, _ in readers]
    rows, width = rewriter.shape(nodes[0].reads[0]), rewriter.shape(normed)[-1]
    if not all(same(rewriter.shape(reader.reads[0])[-1], width) for reader in nodes):
        return  # a norm of each head, where a product reads all heads of a token as one row
    types = {"x": TensorType(rows, rewriter.types[norm.x].dtype)}
    unpaired = [_Product(reader) for reader in nodes]
    choices = [unpaired]
    if not norm.operator.centred:
        assert norm.weight is not None
        types["norm"] = rewriter.types[norm.weight]
        choices = [_paired(rewriter, nodes), unpaired]
    for products in choices:
        if all(
            is_profitable(product.operator(norm), {**types, **product.weight_types(rewriter)})
            for product in products
        ):
            for product in products:
                x = rewriter.reshape(product.node.name, norm.x, rows)
                product.replace(rewriter, norm, x)
            return


def _readers(rewriter: GraphRewriter, value: Value) -> Iterator[tuple[Node, Value]]:
    """Yield the nodes that read `value` or a view of it, each with the value that it reads. Where
    the value is an output, its producer is yielded, too.
    """
    for reader in rewriter.readers(value):
        (result, *_) = reader.outputs
        if isinstance(reader.operator, View) and not rewriter.is_output(result):
            yield from _readers(rewriter, result)
        else:
            yield reader, value
    if rewriter.is_output(value) and (producer := rewriter.producer(value)) is not None:
        yield producer, value


def _is_product(rewriter: GraphRewriter, node: Node, rows: Value) -> bool:
    """Return True where `node` multiplies `rows` by a fixed float32 matrix, and reads them only
    once.
    """
    operator = node.operator
    if not isinstance(operator, Matmul) or operator.prologue is not None:
        return False
    x, weight = node.inputs
    if x is not rows or weight is None or node.reads.count(rows) > 1:
        return False
    is_float32 = all(rewriter.types[value].dtype is DType.float32 for value in (rows, weight))
    return is_float32 and rewriter.is_fixed(weight) and len(rewriter.shape(weight)) == 2


def _paired(rewriter: GraphRewriter, nodes: list[Node]) -> list[_Product]:
    """Return the products of `nodes`, the two of a gate as one."""
    pairs, paired_nodes = [], set[Node]()
    for node in nodes:
        pair = _match_gate(rewriter, node)
        if pair is not None and pair.node in nodes and pair.up in nodes:
            pairs.append(pair)
            paired_nodes |= {pair.node, pair.up}
    return [*pairs, *(_Product(node) for node in nodes if node not in paired_nodes)]


def _match_gate(rewriter: GraphRewriter, node: Node) -> _Product | None:
    """Return gate(a) * b for products a and b, where `node` computes a and has the gate and the
    multiplication as its epilogue; None where it has not.
    """
    epilogue = node.epilogue
    if epilogue is None or len(node.extras) != 1 or not isinstance(epilogue.expr, Call):
        return None
    value, up = rewriter.behind_views(node.extras[0])
    if up is None or not rewriter.is_read_once(value):
        return None
    if rewriter.shape(value) != rewriter.shape(node.outputs[0]):
        return None
    for gate in GATES:
        is_gate = _multiplies(epilogue.expr, call(gate, Arg(0)), Arg(1))
        if up.epilogue is None and is_gate:
            return _Product(node, gate, up)
    return None


def _multiplies(expr: Call, *factors: object) -> bool:
    """Return True where `expr` is the product of both factors, in either order."""
    return expr.function == "mul" and expr.arguments in (factors, factors[::-1])


def fuse_cache_updates(
    graph: Graph, types: dict[Value, TensorType], is_profitable: FusionCheck
) -> Graph:
    """Return `graph` with concatenations that append a token to a cache as one operator each, which
    reads the token from a longer row and rotates it, where that pays.

    types: of every value; types of new values are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if appends_token(rewriter, node):
            _fuse_cache_update(rewriter, node, is_profitable)
    return rewriter.graph()


def _fuse_cache_update(rewriter: GraphRewriter, node: Node, is_profitable: FusionCheck) -> None:
    """Replace a concatenation that appends a token to a cache by a CacheAppend where that pays."""
    past, token = node.reads
    batch, heads, _, width = rewriter.shape(token)
    rows, producer = rewriter.behind_views(token)
    if producer is None or not rewriter.is_read_once(rows) or producer.epilogue is not None:
        return
    shape, operator = rewriter.shape(rows), producer.operator
    if len(shape) != 2 or not same(shape[0], batch) or not same(shape[1], heads * width):
        return
    table: Value | None = None
    places: Value | None = None
    if isinstance(operator, Rotary):
        if (operator.heads, operator.width) != (heads, width):
            return
        named = operator.named(producer.inputs)
        x, table, places = named["x"], named["rotary"], named["places"]
        append = CacheAppend(heads, width, operator.context, operator.start, operator.order)
    elif isinstance(operator, Slice):
        (x,) = producer.reads
        *_, (start, _, step) = operator.walks(rewriter.shape(x))
        if operator.axes not in ((1,), (-1,)) or step != 1:
            return
        append = CacheAppend(heads, width, 1, start)
    else:
        return
    inputs = x, table, past, places
    types = {name: rewriter.types[value] for name, value in append.named(inputs).items()}
    if any(type.dtype is DType.float16 for type in types.values()):
        return
    if is_profitable(append, types):
        rewriter.replace_by(node, rewriter.add(node.name, append, *inputs))


def appends_token(rewriter: GraphRewriter, node: Node) -> bool:
    """Return True where `node` appends a single token of all heads to a cache that is an input."""
    if not isinstance(node.operator, Concat) or node.operator.axis not in (2, -2):
        return False
    if len(node.reads) != 2 or node.reads[0] is node.reads[1]:
        return False
    past, token = node.reads
    shape, new = rewriter.shape(past), rewriter.shape(token)
    if len(shape) != 4 or not isinstance(new[1], int) or not isinstance(new[3], int):
        return False
    is_input = rewriter.producer(past) is None and not rewriter.is_fixed(past)
    return is_input and same(new[2], 1) and 0 not in shape
