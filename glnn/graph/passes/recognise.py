"""Recognise normalisations and softmaxes written in small pieces, as operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Normalize, Pointwise, Reduce, Softmax
from glnn.graph.passes.rewriting import Rewriting
from glnn.graph.passes.terms import Term, Terms
from glnn.types import DType, TensorType


@dataclass(frozen=True)
class Found:
    """A recognised term: an operator of x along `axes`, its weight and its bias."""

    operator: Operator
    axes: tuple[int, ...]
    x: Term
    weight: Term | None = None
    bias: Term | None = None


Rule = Callable[[Term], Iterator[Found]]
"""Rule that yields the operators that a term may be."""


def with_layer_norms(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with layer normalisations in pieces as one operator each (Ba et al. 2016).

    types: of every value; those of new ones are added.
    """
    return _recognised(graph, types, lambda term: _affine(term, _centred), _multiplied_out)


def with_rms_norms(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """The same with RMS normalisations (Zhang and Sennrich 2019)."""
    return _recognised(graph, types, lambda term: _affine(term, _by_root_mean_square))


def with_softmaxes(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """The same with softmaxes that take the maximum away first, and their logarithms."""
    return _recognised(graph, types, _softmax)


def _recognised(graph: Graph, types: dict[Value, TensorType], *rules: Rule) -> Graph:
    if not any(isinstance(node.operator, Reduce) for node in graph.nodes):
        return graph
    rewriting = Rewriting(graph, types)
    terms = Terms(rewriting)
    for node in reversed(rewriting.nodes):
        value = node.outputs[0]
        if isinstance(node.operator, Pointwise) and rewriting.computed(value) is node:
            for found in (found for rule in rules for found in rule(terms.of(value))):
                if _put(rewriting, node, found):
                    break
    return rewriting.graph()


def _put(rewriting: Rewriting, node: Node, found: Found) -> bool:
    """Replace the maker of `node`'s result by `found`; return True where that is possible."""
    result, count = rewriting.types[node.outputs[0]], len(found.axes)
    x = next((v for v in found.x.values if rewriting.types[v] == result), None)
    if x is None or result.dtype is not DType.float32:
        return False
    rank = len(result.shape)
    if isinstance(found.operator, Normalize) and found.axes != tuple(range(rank - count, rank)):
        return False
    inputs: list[Value | None] = [x]
    for term in (found.weight, found.bias):
        value = None if term is None else _parameter(rewriting, term, result.shape, count)
        if value is None and term is not None:
            return False
        inputs.append(value)
    inputs = [
        v if v is None or i == 0 else rewriting.reshaped(node.name, v, result.shape[rank - count :])
        for i, v in enumerate(inputs)
    ]
    while inputs[-1] is None:
        inputs.pop()
    before = node.inputs
    rewriting.replace(node, found.operator, *inputs)
    for value in before:
        rewriting.prune(value)
    return True


def _parameter(
    rewriting: Rewriting, term: Term, result: tuple[int, ...], count: int
) -> Value | None:
    """Return the value of `term` where it has a number for each place of the last `count`
    dimensions.
    """
    value = next((v for v in term.values if rewriting.fixed(v)), None)
    if value is None or len(shape := rewriting.shape(value)) > len(result):
        return None
    wide = (*(1,) * (len(result) - len(shape)), *shape)
    split = len(result) - count
    fits = wide[split:] == result[split:] and set(wide[:split]) <= {1}
    return value if fits else None


def _affine(term: Term, core: Callable[[Term], Found | None]) -> Iterator[Found]:
    """Yield the term as `core`, as `core` times a weight, and as either plus a bias."""
    yield from _scaled(term, core)
    if term.function == "add":
        for one, bias in term.either():
            for scaled in _scaled(one, core):
                yield replace(scaled, bias=bias)


def _scaled(term: Term, core: Callable[[Term], Found | None]) -> Iterator[Found]:
    """Yield the term as `core`, and as `core` times a weight."""
    if (found := core(term)) is not None:
        yield found
    if term.function == "mul":
        for one, weight in term.either():
            if (found := core(one)) is not None:
                yield replace(found, weight=weight)


def _shifted(term: Term) -> tuple[Term, float] | None:
    """Return v and epsilon where the term is the root of v + epsilon."""
    if term.function != "sqrt" or term.arguments[0].function != "add":
        return None
    for variance, eps in term.arguments[0].either():
        if eps.number is not None and eps.number >= 0:
            return variance, eps.number
    return None


def _mean_square(term: Term, of: Term) -> bool:
    """Return True where `term` is the mean of the squares of `of`."""
    if term.function != "mean" or term.arguments[0].function != "square":
        return False
    return term.arguments[0].arguments[0] is of


def _centred(term: Term) -> Found | None:
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps)."""
    if term.function != "div":
        return None
    apart, root = term.arguments
    shifted = _shifted(root)
    if shifted is None or apart.function != "sub":
        return None
    (x, mean), (variance, eps) = apart.arguments, shifted
    if mean.function != "mean" or mean.arguments[0] is not x:
        return None
    if not _mean_square(variance, apart) or variance.axes != mean.axes:
        return None
    return Found(Normalize(len(mean.axes), eps=eps), mean.axes, x)


def _by_root_mean_square(term: Term) -> Found | None:
    """x / sqrt(mean(x^2) + eps)."""
    if term.function != "div" or (shifted := _shifted(term.arguments[1])) is None:
        return None
    x, (variance, eps) = term.arguments[0], shifted
    if not _mean_square(variance, x):
        return None
    return Found(Normalize(len(variance.axes), centred=False, eps=eps), variance.axes, x)


def _multiplied_out(term: Term) -> Iterator[Found]:
    """x (w / d) + (b - mean(x) (w / d)), d as above: as TensorFlow has it."""
    if term.function != "add":
        return
    for scaled, moved in term.either():
        if scaled.function != "mul" or moved.function != "sub":
            continue
        bias, away = moved.arguments
        for x, factor in scaled.either():
            if factor.function not in ("div", "reciprocal") or away.function != "mul":
                continue
            for mean, again in away.either():
                root = factor.arguments[-1]
                if again is not factor or (shifted := _shifted(root)) is None:
                    continue
                variance, eps = shifted
                if mean.function != "mean" or mean.arguments[0] is not x:
                    continue
                apart = variance.arguments[0].arguments if variance.arguments else ()
                if not apart or not _mean_square(variance, apart[0]):
                    continue
                if apart[0].function != "sub" or set(apart[0].arguments) != {x, mean}:
                    continue
                weight = factor.arguments[0] if factor.function == "div" else None
                norm = Normalize(len(mean.axes), eps=eps)
                yield Found(norm, mean.axes, x, weight, bias)


def _softmax(term: Term) -> Iterator[Found]:
    """exp(x - max(x)) / sum(exp(x - max(x))), or the logarithm of that."""
    log = term.function == "sub"
    if term.function not in ("div", "sub"):
        return
    one, other = term.arguments
    total = other.arguments[0] if log and other.function == "log" else other
    powers = total.arguments[0] if total.function == "sum" else total
    below = powers.arguments[0] if powers.function == "exp" else powers
    if total.function != "sum" or powers.function != "exp" or below.function != "sub":
        return
    if one is not (below if log else powers) or (log and other.function != "log"):
        return
    x, most = below.arguments
    alike = most.function == "max" and most.arguments[0] is x and most.axes == total.axes
    if alike and len(total.axes) == 1:
        yield Found(Softmax(total.axes[0], log), total.axes, x)
