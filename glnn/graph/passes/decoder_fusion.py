"""Fuse steps of decoders that are small for few tokens: normalised products, growing caches.

They come behind `fuse_pointwise` and `fuse_siblings`, when gates are in epilogues and the products
of queries, keys and values are one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glnn.core.symint import same
from glnn.core.types import DType, TensorType
from glnn.graph.expression import Arg, Call, call
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


def fuse_normed_products(
    graph: Graph, types: dict[Value, TensorType], is_profitable: FusionCheck
) -> Graph:
    """Return `graph` with RMS normalisations as a part of the products of few rows that read them,
    and the two products of a gate as one, where that pays for all readers of a norm.

    Each product then normalises for itself. What was in its epilogue is pointwise work behind it
    again, for `fuse_pointwise`. types: of every value; those of new ones are added.
    """
    rewriter = GraphRewriter(graph, types)
    for node in rewriter.nodes:
        if isinstance(node.operator, Normalize):
            _fuse_norm(rewriter, node, node.operator, is_profitable)
    return rewriter.graph()


@dataclass(frozen=True)
class _Product:
    """A product that reads normalised rows; with `up` the other one of a gate `gate`."""

    node: Node
    gate: str = ""
    up: Node | None = None

    def operator(self, eps: float) -> NormedMatmul:
        """Return the operator that normalises, too."""
        return NormedMatmul(eps, self.gate)

    def weight_types(self, rewriter: GraphRewriter) -> dict[str, TensorType]:
        """Return the types of the matrices, by operand."""
        nodes = {"weight": self.node} if self.up is None else {"weight": self.node, "up": self.up}
        return {name: rewriter.types[node.reads[1]] for name, node in nodes.items()}

    def replace(self, rewriter: GraphRewriter, eps: float, x: Value, norm: Value) -> None:
        """Have the operator that normalises rows x make what `node` makes."""
        node, up = self.node, None if self.up is None else self.up.reads[1]
        result = rewriter.add(node.name, self.operator(eps), x, node.reads[1], norm, up)
        if self.up is None and node.epilogue is not None:
            result = rewriter.add(node.name, Pointwise(node.epilogue.expr), result, *node.extras)
        rewriter.replace_by(node, result)
        for value in node.extras:
            rewriter.prune(value)


def _fuse_norm(
    rewriter: GraphRewriter, node: Node, norm: Normalize, is_profitable: FusionCheck
) -> None:
    """Have the readers of an RMS normalisation normalise for themselves where that pays."""
    (normed,), operands = node.outputs, norm.named(node.inputs)
    plain = norm.dims == 1 and not norm.centred and set(operands) == {"x", "weight"}
    if not plain or node.epilogue is not None or not rewriter.is_fixed(operands["weight"]):
        return
    readers = list(_readers(rewriter, normed))
    if not readers or not all(_is_product(rewriter, *one) for one in readers):
        return
    nodes = [reader for reader, _ in readers]
    rows, width = rewriter.shape(nodes[0].reads[0]), rewriter.shape(normed)[-1]
    if not all(same(rewriter.shape(one.reads[0])[-1], width) for one in nodes):
        return  # a norm of each head, whose heads a product takes side by side
    types = {"x": TensorType(rows, rewriter.types[operands["x"]].dtype)}
    types |= {"norm": rewriter.types[operands["weight"]]}
    for products in (_paired(rewriter, nodes), [_Product(one) for one in nodes]):
        if all(
            is_profitable(one.operator(norm.eps), {**types, **one.weight_types(rewriter)})
            for one in products
        ):
            for one in products:
                x = rewriter.reshape(one.node.name, operands["x"], rows)
                one.replace(rewriter, norm.eps, x, operands["weight"])
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
