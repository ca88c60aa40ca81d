"""Recognise activations written in small pieces, and replace them by their functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import isclose, pi, sqrt

from glnn.graph.expression import Arg, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operators import Pointwise
from glnn.graph.passes.rewriting import Rewriting
from glnn.graph.passes.terms import Term, Terms
from glnn.types import DType, TensorType

Rule = Callable[[Term], Term | None]
"""Rule that returns x where a term is a function of it; None where it is another."""
MOST = 3  # factors of what is looked for; gradients are products of very many


def with_activations(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with GELU by erf and by tanh, SiLU, hardswish and mish in pieces as functions.

    types: of every value; those of new ones are added. Hendrycks and Gimpel 2016; Ramachandran et
    al. 2017; Howard et al. 2019; Misra 2019.
    """
    rewriting = Rewriting(graph, types)
    terms = Terms(rewriting)
    for node in reversed(rewriting.nodes):
        value = node.outputs[0]
        if not isinstance(node.operator, Pointwise) or rewriting.computed(value) is not node:
            continue
        if rewriting.types[value].dtype is DType.float32:
            _put(rewriting, node, terms.of(value))
    return rewriting.graph()


def _put(rewriting: Rewriting, node: Node, term: Term) -> None:
    for name, rule in RULES.items():
        x = rule(term)
        values = () if x is None else x.values
        value = next(
            (v for v in values if rewriting.types[v] == rewriting.types[node.outputs[0]]), None
        )
        if value is not None:
            before = node.inputs
            rewriting.replace(node, Pointwise(call(name, Arg(0))), value)
            for one in before:
                rewriting.prune(one)
            return


def product(term: Term) -> tuple[float, Counter[Term]]:
    """A number and the factors that `term` is the product of; of more than `MOST` only some."""
    number, factors = 1.0, Counter[Term]()
    waiting = [(term, 1)]
    while waiting and factors.total() <= MOST:
        one, power = waiting.pop(0)  # the shallowest, which is over the soonest
        if one.number is not None:
            number *= one.number**power
        elif one.function == "square":
            waiting.append((one.arguments[0], 2 * power))
        elif one.function == "mul":
            waiting += [(factor, power) for factor in one.arguments]
        else:
            factors[one] += power
    return number, factors


def _of(term: Term, number: float, factor: Callable[[Term, Term], bool]) -> Term | None:
    """Return x, where `term` is number x f, and `factor` says of f and x whether they belong
    together.
    """
    found, factors = product(term)
    if not isclose(found, number, rel_tol=1e-5) or sorted(factors.values()) != [1, 1]:
        return None
    one, other = factors
    for x, f in ((one, other), (other, one)):
        if factor(f, x):
            return x
    return None


def _one_more(term: Term) -> Term | None:
    """t, where `term` is 1 + t."""
    if term.function != "add":
        return None
    return next((t for t, one in term.either() if one.number == 1.0), None)


def _times(term: Term, number: float, x: Term) -> bool:
    """Return True where `term` equals `number` times x."""
    found, factors = product(term)
    return isclose(found, number, rel_tol=1e-5) and factors == Counter({x: 1})


def _erf(factor: Term, x: Term) -> bool:
    inner = _one_more(factor)
    return (
        inner is not None and inner.function == "erf" and _times(inner.arguments[0], sqrt(0.5), x)
    )


def _tanh(factor: Term, x: Term) -> bool:
    inner = _one_more(factor)
    if inner is None or inner.function != "tanh":
        return False
    number, factors = product(inner.arguments[0])
    (cubic,) = factors if factors.total() == 1 else (None,)
    if cubic is None or cubic.function != "add" or not isclose(number, sqrt(2 / pi), rel_tol=1e-4):
        return False
    for one, other in cubic.either():
        found, powers = product(other)
        if one is x and isclose(found, 0.044715, rel_tol=1e-4) and powers == Counter({x: 3}):
            return True
    return False


def _sigmoid(factor: Term, x: Term) -> bool:
    return factor.function == "sigmoid" and factor.arguments[0] is x


def _silu(term: Term) -> Term | None:
    if term.function == "div":  # x / (1 + exp(-x))
        x, below = term.arguments
        power = _one_more(below)
        negative = power is not None and power.function == "exp" and power.arguments[0]
        if negative and negative.function == "neg" and negative.arguments[0] is x:
            return x
    return _of(term, 1.0, _sigmoid)


def _hard(factor: Term, x: Term, slope: float, offset: float, most: float) -> bool:
    """Return True where `factor` is slope x + offset, clamped to 0 from below and to `most` from
    above.
    """
    if factor.function == "hardsigmoid" and most == 1.0:
        given, a, b = factor.arguments
        return given is x and _near(a, slope) and _near(b, offset)
    inner: Term | None = factor
    if factor.function == "relu6" and most == 6.0:
        inner = factor.arguments[0]
    elif factor.function == "clip" and _near(factor.arguments[2], most):
        inner = factor.arguments[0] if _near(factor.arguments[1], 0.0) else None
    else:
        for function, end in (("minimum", most), ("maximum", 0.0)):
            if inner is None or inner.function != function:
                return False
            inner = next((t for t, number in inner.either() if _near(number, end)), None)
    if inner is None or inner.function != "add":
        return False
    return any(_near(number, offset) and _times(t, slope, x) for t, number in inner.either())


def _near(term: Term, number: float) -> bool:
    return term.number is not None and isclose(term.number, number, rel_tol=1e-5, abs_tol=1e-12)


def _hardswish(term: Term) -> Term | None:
    found = _of(term, 1.0, lambda factor, x: _hard(factor, x, 1 / 6, 0.5, 1.0))
    return found or _of(term, 1 / 6, lambda factor, x: _hard(factor, x, 1.0, 3.0, 6.0))


def _softplus(factor: Term, x: Term) -> bool:
    if factor.function != "tanh":
        return False
    inner = factor.arguments[0]
    if inner.function == "softplus":
        given, beta, _ = inner.arguments
        return given is x and _near(beta, 1.0)
    power = _one_more(inner.arguments[0]) if inner.function == "log" else None
    return power is not None and power.function == "exp" and power.arguments[0] is x


RULES: dict[str, Rule] = {
    "gelu": lambda term: _of(term, 0.5, _erf),
    "gelu_tanh": lambda term: _of(term, 0.5, _tanh),
    "silu": _silu,
    "hardswish": _hardswish,
    "mish": lambda term: _of(term, 1.0, _softplus),
}
