"""Recognise normalisations, softmaxes and activations written in small pieces, as operators and
functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import isclose, pi, sqrt

from glnn.core.types import DType, TensorType
from glnn.graph.expression import Arg, Call, Constant, Expr, Scalar, call
from glnn.graph.graph import Graph, Node, Value
from glnn.graph.operator import Operator
from glnn.graph.operators import Normalize, Pointwise, Reduce, Softmax
from glnn.graph.operators.reductions import axes_of
from glnn.graph.passes.graph_rewriter import GraphRewriter

COMMUTE = ("add", "mul", "maximum", "minimum")
REDUCTIONS = ("sum", "mean", "max")


@dataclass(frozen=True, eq=False)
class Term:
    """A function of terms, a number, or a leaf: a value that is neither.

    Terms are interned: equal terms are the same object.
    """

    function: str
    """Kind of the term: one of FUNCTIONS; a reduction's kind; "number"; "value"."""
    arguments: tuple[Term, ...] = ()
    number: float | None = None
    """The number of a term of kind "number"."""
    axes: tuple[int, ...] = ()
    """Axes of a reduction; the result keeps them with size 1."""
    value: Value | None = None
    """The value of a leaf."""
    values: list[Value] = field(default_factory=list)
    """All values that equal the term."""

    def argument_orders(self) -> Iterator[tuple[Term, Term]]:
        """Yield the two arguments, and swapped where the function is commutative."""
        first, second = self.arguments
        yield first, second
        if self.function in COMMUTE and first is not second:
            yield second, first


class Terms:
    """The terms of a graph's values."""

    def __init__(self, rewriter: GraphRewriter) -> None:
        self._rewriter = rewriter
        self._interned: dict[object, Term] = {}
        self._terms: dict[Value, Term] = {}
        for node in rewriter.nodes:
            for value in node.outputs:
                self._terms[value] = self._from_node(node, value)
                self._terms[value].values.append(value)

    def term_of(self, value: Value) -> Term:
        """Return the term of `value`."""
        if value not in self._terms:
            self._terms[value] = self._leaf(value)
        return self._terms[value]

    def _leaf(self, value: Value) -> Term:
        if value not in self._interned:
            self._interned[value] = Term("value", value=value, values=[value])
        return self._interned[value]

    def _from_node(self, node: Node, value: Value) -> Term:
        """Return the term of `value`, a result of `node`."""
        operator = node.operator
        if node.epilogue is not None or self._rewriter.is_fixed(value):
            return self._leaf(value)
        operands = [self.term_of(v) for v in node.inputs if v is not None]
        if isinstance(operator, Pointwise):
            return self._expression(operator.expr, operands)
        if isinstance(operator, Reduce) and self._is_plain(operator):
            x = node.inputs[0]
            assert x is not None
            axes = axes_of("reduce", operator.axes, len(self._rewriter.shape(x)))
            inner = self._expression(operator.prologue, operands)
            reduced = self._intern(operator.kind, (inner,), axes=axes)
            return self._expression(operator.finish, [reduced])
        return self._leaf(value)

    def _is_plain(self, operator: Reduce) -> bool:
        return operator.keepdims and operator.kind in REDUCTIONS and not operator.parts

    def _expression(self, expr: Expr, terms: list[Term]) -> Term:
        def term(part: Expr, arguments: tuple[Term, ...]) -> Term:
            if isinstance(part, Arg):
                return terms[part.index]
            if isinstance(part, Scalar | Constant):
                return self._intern("number", number=float(part.value))
            assert isinstance(part, Call)
            return self._call(part.function, arguments)

        return expr.fold(term)[-1]

    def _call(self, function: str, operands: tuple[Term, ...]) -> Term:
        """Return the canonical term of a call: quotients by a number and by reciprocals, powers
        and roots are each written in one way.
        """
        if function == "pow" and operands[1].number == 2.0:
            return self._call("square", operands[:1])
        if function == "pow" and operands[1].number == 3.0:
            return self._call("mul", (self._call("square", operands[:1]), operands[0]))
        if function == "pow" and operands[1].number == 0.5:
            return self._call("sqrt", operands[:1])
        if function == "mul" and operands[0] is operands[1]:
            return self._call("square", operands[:1])
        if function == "rsqrt":
            return self._call("reciprocal", (self._call("sqrt", operands),))
        if function == "div" and operands[0].number == 1.0:
            return self._call("reciprocal", operands[1:])
        if function == "mul":
            for factor, other in (operands, operands[::-1]):
                if factor.function == "reciprocal":
                    return self._call("div", (other, factor.arguments[0]))
        if function == "div" and operands[1].number:
            number = self._intern("number", number=1.0 / operands[1].number)
            return self._call("mul", (operands[0], number))
        return self._intern(function, operands)

    def _intern(
        self,
        function: str,
        arguments: tuple[Term, ...] = (),
        number: float | None = None,
        axes: tuple[int, ...] = (),
    ) -> Term:
        order = frozenset(arguments) if function in COMMUTE else arguments
        key = function, order, number, axes
        if key not in self._interned:
            self._interned[key] = Term(function, arguments, number, axes)
        return self._interned[key]


@dataclass(frozen=True)
class Match:
    """A recognised term: an operator of x along `axes`, its weight and its bias."""

    operator: Operator
    axes: tuple[int, ...]
    x: Term
    weight: Term | None = None
    bias: Term | None = None


MatchRule = Callable[[Term], Iterator[Match]]
"""Rule that yields the matches of a term."""


def recognize_layer_norms(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with layer normalisations in pieces as one operator each (Ba et al. 2016).

    types: of every value; types of new values are added.
    """
    return _recognize(
        graph,
        types,
        lambda term: _match_affine(term, _match_layer_norm),
        _match_expanded_layer_norm,
    )


def recognize_rms_norms(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with RMS normalisations in pieces as one operator each (Zhang and Sennrich
    2019).
    """
    return _recognize(graph, types, lambda term: _match_affine(term, _match_rms_norm))


def recognize_softmaxes(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with softmaxes that subtract the maximum first, and their logarithms, as one
    operator each.
    """
    return _recognize(graph, types, _match_softmax)


def _recognize(graph: Graph, types: dict[Value, TensorType], *rules: MatchRule) -> Graph:
    if not any(isinstance(node.operator, Reduce) for node in graph.nodes):
        return graph
    rewriter = GraphRewriter(graph, types)
    terms = Terms(rewriter)
    for node in reversed(rewriter.nodes):
        value = node.outputs[0]
        if isinstance(node.operator, Pointwise) and rewriter.runtime_producer(value) is node:
            for match in (match for rule in rules for match in rule(terms.term_of(value))):
                if _replace_match(rewriter, node, match):
                    break
    return rewriter.graph()


def _replace_match(rewriter: GraphRewriter, node: Node, match: Match) -> bool:
    """Replace `node` by the operator of `match`; return False where that is impossible."""
    result, count = rewriter.types[node.outputs[0]], len(match.axes)
    x = next((v for v in match.x.values if rewriter.types[v] == result), None)
    if x is None or result.dtype is not DType.float32:
        return False
    rank = len(result.shape)
    if isinstance(match.operator, Normalize) and match.axes != tuple(range(rank - count, rank)):
        return False
    inputs: list[Value | None] = [x]
    for term in (match.weight, match.bias):
        value = None if term is None else _find_parameter(rewriter, term, result.shape, count)
        if value is None and term is not None:
            return False
        inputs.append(value)
    inputs = [
        v if v is None or i == 0 else rewriter.reshape(node.name, v, result.shape[rank - count :])
        for i, v in enumerate(inputs)
    ]
    while inputs[-1] is None:
        inputs.pop()
    operands = node.inputs
    rewriter.replace(node, match.operator, *inputs)
    for value in operands:
        rewriter.prune(value)
    return True


def _find_parameter(
    rewriter: GraphRewriter, term: Term, result: tuple[int, ...], count: int
) -> Value | None:
    """Return a fixed value that equals `term` and spans just the last `count` dimensions of a
    result of shape `result`; None where there is none.
    """
    value = next((v for v in term.values if rewriter.is_fixed(v)), None)
    if value is None or len(shape := rewriter.shape(value)) > len(result):
        return None
    wide = (*(1,) * (len(result) - len(shape)), *shape)
    split = len(result) - count
    fits = wide[split:] == result[split:] and set(wide[:split]) <= {1}
    return value if fits else None


def _match_affine(term: Term, core: Callable[[Term], Match | None]) -> Iterator[Match]:
    """Yield matches of the term as `core`, as `core` times a weight, and as either plus a bias."""
    yield from _match_scaled(term, core)
    if term.function == "add":
        for scaled, bias in term.argument_orders():
            for match in _match_scaled(scaled, core):
                yield replace(match, bias=bias)


def _match_scaled(term: Term, core: Callable[[Term], Match | None]) -> Iterator[Match]:
    """Yield matches of the term as `core`, and as `core` times a weight."""
    if (match := core(term)) is not None:
        yield match
    if term.function == "mul":
        for normalized, weight in term.argument_orders():
            if (match := core(normalized)) is not None:
                yield replace(match, weight=weight)


def _match_root(term: Term) -> tuple[Term, float] | None:
    """Return v and epsilon where the term is the root of v + epsilon."""
    if term.function != "sqrt" or term.arguments[0].function != "add":
        return None
    for variance, eps in term.arguments[0].argument_orders():
        if eps.number is not None and eps.number >= 0:
            return variance, eps.number
    return None


def _is_mean_square(term: Term, x: Term) -> bool:
    """Return True where `term` is the mean of the squares of `x`."""
    if term.function != "mean" or term.arguments[0].function != "square":
        return False
    return term.arguments[0].arguments[0] is x


def _match_layer_norm(term: Term) -> Match | None:
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps)."""
    if term.function != "div":
        return None
    centred, root = term.arguments
    shifted = _match_root(root)
    if shifted is None or centred.function != "sub":
        return None
    (x, mean), (variance, eps) = centred.arguments, shifted
    if mean.function != "mean" or mean.arguments[0] is not x:
        return None
    if not _is_mean_square(variance, centred) or variance.axes != mean.axes:
        return None
    return Match(Normalize(len(mean.axes), eps=eps), mean.axes, x)


def _match_rms_norm(term: Term) -> Match | None:
    """x / sqrt(mean(x^2) + eps)."""
    if term.function != "div" or (shifted := _match_root(term.arguments[1])) is None:
        return None
    x, (variance, eps) = term.arguments[0], shifted
    if not _is_mean_square(variance, x):
        return None
    return Match(Normalize(len(variance.axes), centred=False, eps=eps), variance.axes, x)


def _match_expanded_layer_norm(term: Term) -> Iterator[Match]:
    """x (w / d) + (b - mean(x) (w / d)), where d = sqrt(mean((x - mean(x))^2) + eps), as TensorFlow
    writes it.
    """
    if term.function != "add":
        return
    for scaled, shift in term.argument_orders():
        if scaled.function != "mul" or shift.function != "sub":
            continue
        bias, scaled_mean = shift.arguments
        for x, factor in scaled.argument_orders():
            if factor.function not in ("div", "reciprocal") or scaled_mean.function != "mul":
                continue
            for mean, mean_factor in scaled_mean.argument_orders():
                root = factor.arguments[-1]
                if mean_factor is not factor or (match := _match_root(root)) is None:
                    continue
                variance, eps = match
                if mean.function != "mean" or mean.arguments[0] is not x:
                    continue
                bases = variance.arguments[0].arguments if variance.arguments else ()
                if not bases or not _is_mean_square(variance, bases[0]):
                    continue
                centred = bases[0]
                if centred.function != "sub" or set(centred.arguments) != {x, mean}:
                    continue
                weight = factor.arguments[0] if factor.function == "div" else None
                norm = Normalize(len(mean.axes), eps=eps)
                yield Match(norm, mean.axes, x, weight, bias)


def _match_softmax(term: Term) -> Iterator[Match]:
    """exp(x - max(x)) / sum(exp(x - max(x))), or the logarithm of that."""
    log = term.function == "sub"
    if term.function not in ("div", "sub"):
        return
    numerator, denominator = term.arguments  # of the logarithm: minuend and subtrahend
    total = denominator.arguments[0] if log and denominator.function == "log" else denominator
    exps = total.arguments[0] if total.function == "sum" else total
    shifted = exps.arguments[0] if exps.function == "exp" else exps
    if total.function != "sum" or exps.function != "exp" or shifted.function != "sub":
        return
    if numerator is not (shifted if log else exps) or (log and denominator.function != "log"):
        return
    x, maximum = shifted.arguments
    is_maximum = maximum.function == "max" and maximum.arguments[0] is x
    if is_maximum and maximum.axes == total.axes and len(total.axes) == 1:
        yield Match(Softmax(total.axes[0], log), total.axes, x)


ActivationRule = Callable[[Term], Term | None]
"""Rule that returns x where a term is the rule's function of x; None where it is not."""
MOST_FACTORS = 3  # no activation has more; gradients are products of very many


def recognize_activations(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with GELU by erf and by tanh, SiLU, hardswish, mish and ReLU6 in pieces as
    functions.

    types: of every value; types of new values are added. Hendrycks and Gimpel 2016; Ramachandran et
    al. 2017; Howard et al. 2019; Misra 2019.
    """
    rewriter = GraphRewriter(graph, types)
    terms = Terms(rewriter)
    for node in reversed(rewriter.nodes):
        value = node.outputs[0]
        if not isinstance(node.operator, Pointwise) or rewriter.runtime_producer(value) is not node:
            continue
        if rewriter.types[value].dtype is DType.float32:
            _replace_activation(rewriter, node, terms.term_of(value))
    return rewriter.graph()


def _replace_activation(rewriter: GraphRewriter, node: Node, term: Term) -> None:
    for name, rule in ACTIVATIONS.items():
        x = rule(term)
        values = () if x is None else x.values
        value = next(
            (v for v in values if rewriter.types[v] == rewriter.types[node.outputs[0]]), None
        )
        if value is not None:
            operands = node.inputs
            rewriter.replace(node, Pointwise(call(name, Arg(0))), value)
            for operand in operands:
                rewriter.prune(operand)
            return


def factorize(term: Term) -> tuple[float, Counter[Term]]:
    """Return the number and the factors, with their powers, whose product `term` is; it stops once
    there are more than `MOST_FACTORS`.
    """
    number, factors = 1.0, Counter[Term]()
    queue = [(term, 1)]
    while queue and factors.total() <= MOST_FACTORS:
        part, power = queue.pop(0)  # breadth first, which reaches the limit soonest
        if part.number is not None:
            number *= part.number**power
        elif part.function == "square":
            queue.append((part.arguments[0], 2 * power))
        elif part.function == "mul":
            queue += [(factor, power) for factor in part.arguments]
        else:
            factors[part] += power
    return number, factors


def _match_product(term: Term, number: float, is_gate: Callable[[Term, Term], bool]) -> Term | None:
    """Return x where `term` is `number` times x times a term f for which `is_gate(f, x)`."""
    multiple, factors = factorize(term)
    if not isclose(multiple, number, rel_tol=1e-5) or sorted(factors.values()) != [1, 1]:
        return None
    first, second = factors
    for x, gate in ((first, second), (second, first)):
        if is_gate(gate, x):
            return x
    return None


def _match_one_plus(term: Term) -> Term | None:
    """Return t where `term` is 1 + t."""
    if term.function != "add":
        return None
    return next((t for t, other in term.argument_orders() if other.number == 1.0), None)


def _is_multiple(term: Term, number: float, x: Term) -> bool:
    """Return True where `term` equals `number` times x."""
    factor, factors = factorize(term)
    return isclose(factor, number, rel_tol=1e-5) and factors == Counter({x: 1})


def _is_erf_gate(factor: Term, x: Term) -> bool:
    inner = _match_one_plus(factor)
    return (
        inner is not None
        and inner.function == "erf"
        and _is_multiple(inner.arguments[0], sqrt(0.5), x)
    )


def _is_tanh_gate(factor: Term, x: Term) -> bool:
    inner = _match_one_plus(factor)
    if inner is None or inner.function != "tanh":
        return False
    number, factors = factorize(inner.arguments[0])
    (cubic,) = factors if factors.total() == 1 else (None,)
    if cubic is None or cubic.function != "add" or not isclose(number, sqrt(2 / pi), rel_tol=1e-4):
        return False
    for linear, cube in cubic.argument_orders():
        multiple, powers = factorize(cube)
        if linear is x and isclose(multiple, 0.044715, rel_tol=1e-4) and powers == Counter({x: 3}):
            return True
    return False


def _is_sigmoid(factor: Term, x: Term) -> bool:
    return factor.function == "sigmoid" and factor.arguments[0] is x


def _match_silu(term: Term) -> Term | None:
    if term.function == "div":  # x / (1 + exp(-x))
        x, denominator = term.arguments
        power = _match_one_plus(denominator)
        negative = power is not None and power.function == "exp" and power.arguments[0]
        if negative and negative.function == "neg" and negative.arguments[0] is x:
            return x
    return _match_product(term, 1.0, _is_sigmoid)


def _is_hard_sigmoid(factor: Term, x: Term, slope: float, offset: float, most: float) -> bool:
    """Return True where `factor` is slope x + offset, clamped to 0 from below and to `most` from
    above.
    """
    if factor.function == "hardsigmoid" and most == 1.0:
        argument, a, b = factor.arguments
        return argument is x and _is_close(a, slope) and _is_close(b, offset)
    inner = _match_clamped(factor, most, _is_close)
    if inner is None or inner.function != "add":
        return False
    return any(
        _is_close(number, offset) and _is_multiple(t, slope, x)
        for t, number in inner.argument_orders()
    )


def _match_clamped(
    term: Term, most: float, is_number: Callable[[Term, float], bool]
) -> Term | None:
    """Return x where `term` is x clamped to the interval from 0 to `most`.

    is_number: predicate that is True where a term equals a number, perhaps up to rounding.
    """
    if term.function == "relu6" and most == 6.0:
        return term.arguments[0]
    if term.function == "clip":
        x, low, high = term.arguments
        return x if is_number(low, 0.0) and is_number(high, most) else None
    inner: Term | None = term
    for function, end in (("minimum", most), ("maximum", 0.0)):
        if inner is None or inner.function != function:
            return None
        inner = next((t for t, number in inner.argument_orders() if is_number(number, end)), None)
    return inner


def _match_relu6(term: Term) -> Term | None:
    """Return x where `term` is ReLU6 of x, written otherwise.

    The function `relu6` has its bounds as text in kernels: compilers test only x for NaN.
    """
    if term.function == "relu6":
        return None
    return _match_clamped(term, 6.0, lambda bound, number: bound.number == number)


def _is_close(term: Term, number: float) -> bool:
    return term.number is not None and isclose(term.number, number, rel_tol=1e-5, abs_tol=1e-12)


def _match_hardswish(term: Term) -> Term | None:
    match = _match_product(
        term, 1.0, lambda factor, x: _is_hard_sigmoid(factor, x, 1 / 6, 0.5, 1.0)
    )
    return match or _match_product(
        term, 1 / 6, lambda factor, x: _is_hard_sigmoid(factor, x, 1.0, 3.0, 6.0)
    )


def _is_mish_gate(factor: Term, x: Term) -> bool:
    if factor.function != "tanh":
        return False
    inner = factor.arguments[0]
    if inner.function == "softplus":
        argument, beta, _ = inner.arguments
        return argument is x and _is_close(beta, 1.0)
    power = _match_one_plus(inner.arguments[0]) if inner.function == "log" else None
    return power is not None and power.function == "exp" and power.arguments[0] is x


ACTIVATIONS: dict[str, ActivationRule] = {
    "gelu": lambda term: _match_product(term, 0.5, _is_erf_gate),
    "gelu_tanh": lambda term: _match_product(term, 0.5, _is_tanh_gate),
    "silu": _match_silu,
    "hardswish": _match_hardswish,
    "mish": lambda term: _match_product(term, 1.0, _is_mish_gate),
    "relu6": _match_relu6,
}
