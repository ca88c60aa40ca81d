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
    """A function of terms, a number, or a value that is neither.

    Equal ones are the same object.
    """

    function: str
    """Kind of the term: one of FUNCTIONS; a reduction's kind; "number"; "value"."""
    arguments: tuple[Term, ...] = ()
    number: float | None = None
    axes: tuple[int, ...] = ()
    """Axes of a reduction, all of which stay, of size 1."""
    value: Value | None = None
    """The tensor that it is, where there is one."""
    values: list[Value] = field(default_factory=list)
    """All tensors that equal the term."""

    def either(self) -> Iterator[tuple[Term, Term]]:
        """The two arguments in both orders, where these are the same."""
        first, second = self.arguments
        yield first, second
        if self.function in COMMUTE and first is not second:
            yield second, first


class Terms:
    """The terms of a graph's values."""

    def __init__(self, rewriter: GraphRewriter) -> None:
        self._rewriter = rewriter
        self._known: dict[object, Term] = {}
        self._of: dict[Value, Term] = {}
        for node in rewriter.nodes:
            for value in node.outputs:
                self._of[value] = self._made(node, value)
                self._of[value].values.append(value)

    def term_of(self, value: Value) -> Term:
        """Return the term of `value`."""
        if value not in self._of:
            self._of[value] = self._leaf(value)
        return self._of[value]

    def _leaf(self, value: Value) -> Term:
        if value not in self._known:
            self._known[value] = Term("value", value=value, values=[value])
        return self._known[value]

    def _made(self, node: Node, value: Value) -> Term:
        operator = node.operator
        if node.epilogue is not None or self._rewriter.is_fixed(value):
            return self._leaf(value)
        operands = [self.term_of(v) for v in node.inputs if v is not None]
        if isinstance(operator, Pointwise):
            return self._expression(operator.expr, operands)
        if isinstance(operator, Reduce) and self._plain(operator):
            x = node.inputs[0]
            assert x is not None
            axes = axes_of("reduce", operator.axes, len(self._rewriter.shape(x)))
            inner = self._expression(operator.prologue, operands)
            whole = self._known_as(operator.kind, (inner,), axes=axes)
            return self._expression(operator.finish, [whole])
        return self._leaf(value)

    def _plain(self, operator: Reduce) -> bool:
        return operator.keepdims and operator.kind in REDUCTIONS and not operator.parts

    def _expression(self, expr: Expr, terms: list[Term]) -> Term:
        def term(part: Expr, arguments: tuple[Term, ...]) -> Term:
            if isinstance(part, Arg):
                return terms[part.index]
            if isinstance(part, Scalar | Constant):
                return self._known_as("number", number=float(part.value))
            assert isinstance(part, Call)
            return self._call(part.function, arguments)

        return expr.fold(term)[-1]

    def _call(self, function: str, operands: tuple[Term, ...]) -> Term:
        """A call in the one way in which it is written here."""
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
            for one, other in (operands, operands[::-1]):
                if one.function == "reciprocal":
                    return self._call("div", (other, one.arguments[0]))
        if function == "div" and operands[1].number:
            number = self._known_as("number", number=1.0 / operands[1].number)
            return self._call("mul", (operands[0], number))
        if function == "div" and operands[1].function == "number":
            return self._known_as("div", operands)
        return self._known_as(function, operands)

    def _known_as(
        self,
        function: str,
        arguments: tuple[Term, ...] = (),
        number: float | None = None,
        axes: tuple[int, ...] = (),
    ) -> Term:
        order = frozenset(arguments) if function in COMMUTE else arguments
        key = function, order, number, axes
        if key not in self._known:
            self._known[key] = Term(function, arguments, number, axes)
        return self._known[key]


@dataclass(frozen=True)
class Match:
    """A recognised term: an operator of x along `axes`, its weight and its bias."""

    operator: Operator
    axes: tuple[int, ...]
    x: Term
    weight: Term | None = None
    bias: Term | None = None


MatchRule = Callable[[Term], Iterator[Match]]
"""Rule that yields the operators that a term may be."""


def recognize_layer_norms(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with layer normalisations in pieces as one operator each (Ba et al. 2016).

    types: of every value; those of new ones are added.
    """
    return _recognize(
        graph,
        types,
        lambda term: _match_affine(term, _match_layer_norm),
        _match_expanded_layer_norm,
    )


def recognize_rms_norms(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """The same with RMS normalisations (Zhang and Sennrich 2019)."""
    return _recognize(graph, types, lambda term: _match_affine(term, _match_rms_norm))


def recognize_softmaxes(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """The same with softmaxes that take the maximum away first, and their logarithms."""
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
    """Replace the maker of `node`'s result by `match`; return True where that is possible."""
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
    before = node.inputs
    rewriter.replace(node, match.operator, *inputs)
    for value in before:
        rewriter.prune(value)
    return True


def _find_parameter(
    rewriter: GraphRewriter, term: Term, result: tuple[int, ...], count: int
) -> Value | None:
    """Return the value of `term` where it has a number for each place of the last `count`
    dimensions.
    """
    value = next((v for v in term.values if rewriter.is_fixed(v)), None)
    if value is None or len(shape := rewriter.shape(value)) > len(result):
        return None
    wide = (*(1,) * (len(result) - len(shape)), *shape)
    split = len(result) - count
    fits = wide[split:] == result[split:] and set(wide[:split]) <= {1}
    return value if fits else None


def _match_affine(term: Term, core: Callable[[Term], Match | None]) -> Iterator[Match]:
    """Yield the term as `core`, as `core` times a weight, and as either plus a bias."""
    yield from _match_scaled(term, core)
    if term.function == "add":
        for one, bias in term.either():
            for scaled in _match_scaled(one, core):
                yield replace(scaled, bias=bias)


def _match_scaled(term: Term, core: Callable[[Term], Match | None]) -> Iterator[Match]:
    """Yield the term as `core`, and as `core` times a weight."""
    if (match := core(term)) is not None:
        yield match
    if term.function == "mul":
        for one, weight in term.either():
            if (match := core(one)) is not None:
                yield replace(match, weight=weight)


def _match_root(term: Term) -> tuple[Term, float] | None:
    """Return v and epsilon where the term is the root of v + epsilon."""
    if term.function != "sqrt" or term.arguments[0].function != "add":
        return None
    for variance, eps in term.arguments[0].either():
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
    apart, root = term.arguments
    shifted = _match_root(root)
    if shifted is None or apart.function != "sub":
        return None
    (x, mean), (variance, eps) = apart.arguments, shifted
    if mean.function != "mean" or mean.arguments[0] is not x:
        return None
    if not _is_mean_square(variance, apart) or variance.axes != mean.axes:
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
                if again is not factor or (shifted := _match_root(root)) is None:
                    continue
                variance, eps = shifted
                if mean.function != "mean" or mean.arguments[0] is not x:
                    continue
                apart = variance.arguments[0].arguments if variance.arguments else ()
                if not apart or not _is_mean_square(variance, apart[0]):
                    continue
                if apart[0].function != "sub" or set(apart[0].arguments) != {x, mean}:
                    continue
                weight = factor.arguments[0] if factor.function == "div" else None
                norm = Normalize(len(mean.axes), eps=eps)
                yield Match(norm, mean.axes, x, weight, bias)


def _match_softmax(term: Term) -> Iterator[Match]:
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
        yield Match(Softmax(total.axes[0], log), total.axes, x)


ActivationRule = Callable[[Term], Term | None]
"""Rule that returns x where a term is a function of it; None where it is another."""
MOST_FACTORS = 3  # factors of what is looked for; gradients are products of very many


def recognize_activations(graph: Graph, types: dict[Value, TensorType]) -> Graph:
    """Return `graph` with GELU by erf and by tanh, SiLU, hardswish, mish and ReLU6 in pieces as
    functions.

    types: of every value; those of new ones are added. Hendrycks and Gimpel 2016; Ramachandran et
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
            before = node.inputs
            rewriter.replace(node, Pointwise(call(name, Arg(0))), value)
            for one in before:
                rewriter.prune(one)
            return


def factorize(term: Term) -> tuple[float, Counter[Term]]:
    """A number and the factors that `term` is the product of; of more than `MOST_FACTORS` only
    some.
    """
    number, factors = 1.0, Counter[Term]()
    waiting = [(term, 1)]
    while waiting and factors.total() <= MOST_FACTORS:
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


def _match_product(term: Term, number: float, factor: Callable[[Term, Term], bool]) -> Term | None:
    """Return x, where `term` is number x f, and `factor` says of f and x whether they belong
    together.
    """
    multiple, factors = factorize(term)
    if not isclose(multiple, number, rel_tol=1e-5) or sorted(factors.values()) != [1, 1]:
        return None
    one, other = factors
    for x, f in ((one, other), (other, one)):
        if factor(f, x):
            return x
    return None


def _match_one_plus(term: Term) -> Term | None:
    """t, where `term` is 1 + t."""
    if term.function != "add":
        return None
    return next((t for t, one in term.either() if one.number == 1.0), None)


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
    for one, other in cubic.either():
        multiple, powers = factorize(other)
        if one is x and isclose(multiple, 0.044715, rel_tol=1e-4) and powers == Counter({x: 3}):
            return True
    return False


def _is_sigmoid(factor: Term, x: Term) -> bool:
    return factor.function == "sigmoid" and factor.arguments[0] is x


def _match_silu(term: Term) -> Term | None:
    if term.function == "div":  # x / (1 + exp(-x))
        x, below = term.arguments
        power = _match_one_plus(below)
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
        _is_close(number, offset) and _is_multiple(t, slope, x) for t, number in inner.either()
    )


def _match_clamped(
    term: Term, most: float, is_number: Callable[[Term, float], bool]
) -> Term | None:
    """Return what `term` clamps to 0 from below and to `most` from above; None where it does not.

    is_number: whether a term is a number, as near as is asked for.
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
        inner = next((t for t, number in inner.either() if is_number(number, end)), None)
    return inner


def _match_relu6(term: Term) -> Term | None:
    """By its name its bounds are text in kernels: compilers test nothing but x for NaN."""
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
