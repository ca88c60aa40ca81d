"""Products of matrices, determinants, and Einsum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.compose.matmul import integer_matmul, matmul
from glnn.graph.graph import Value
from glnn.graph.operators import Identity, Reduce, Slice, Transpose
from glnn.graph.operators.pointwise import broadcast
from glnn.onnx.operators.call import Converter, OperatorCall


@dataclass(frozen=True)
class _Term:
    """An operand with the names of its dimensions: letters, or digits for those of an ellipsis."""

    value: Value
    names: tuple[str, ...]


def _read(call: OperatorCall, operands: Sequence[Value]) -> tuple[list[_Term], tuple[str, ...]]:
    """Parse the equation into terms and the names of the result. Raises ShapeError."""
    text = call.need("equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise ShapeError(f"Einsum: {text!r} has {len(parts)} operands, got {len(operands)}")
    terms = [_Term(x, _names(call, part, x)) for part, x in zip(parts, operands, strict=True)]
    ellipsis_rank = max((sum(n.isdigit() for n in term.names) for term in terms), default=0)
    broadcast = tuple(map(str, range(ellipsis_rank - 1, -1, -1)))
    if arrow:
        head, ellipsis, tail = right.partition("...")
        result = (*head, *(broadcast if ellipsis else ()), *tail)
    else:
        counts = Counter(name for term in terms for name in term.names if not name.isdigit())
        result = (*broadcast, *sorted(name for name, count in counts.items() if count == 1))
    known = {name for term in terms for name in term.names}
    if len(set(result)) < len(result) or not set(result) <= known:
        raise ShapeError(f"Einsum: the result of {text!r} must name dimensions of operands once")
    return terms, result


def _names(call: OperatorCall, part: str, x: Value) -> tuple[str, ...]:
    """Return the names of x's dimensions; those of an ellipsis are "0" for the last, "1", ..."""
    head, ellipsis, tail = part.partition("...")
    letters = (*head, *tail)
    count = len(x.type.dims) - len(letters)
    if not all(n.isalpha() for n in letters) or count < 0 or (count and not ellipsis):
        raise ShapeError(f"Einsum: {part!r} does not fit {x.type}")
    return (*head, *map(str, range(count - 1, -1, -1)), *tail)


def _diagonal(call: OperatorCall, term: _Term) -> _Term:
    """Return a term in which repeated names are one dimension, the diagonal of these."""
    while len(set(term.names)) < len(term.names):
        name = next(n for n in term.names if term.names.count(n) > 1)
        first, second = [i for i, n in enumerate(term.names) if n == name][:2]
        others = [i for i in range(len(term.names)) if i not in (first, second)]
        x = call(Transpose((*others, first, second)), term.value)
        *shape, n, m = x.type.shape
        if n != m:
            raise ShapeError(f"Einsum: the dimensions {name!r} of {term.value.type} differ")
        flat = call.reshape(x, (*shape, n * m))
        axis = len(shape)
        names = (*(term.names[i] for i in others), name)
        term = _Term(call(Slice((0,), (n * m,), (axis,), (n + 1,)), flat), names)
    return term


def _sum_out(call: OperatorCall, term: _Term, output: set[str]) -> _Term:
    """Return the term summed along dimensions that are not in `output`."""
    axes = tuple(i for i, n in enumerate(term.names) if n not in output)
    if not axes:
        return term
    names = tuple(n for n in term.names if n in output)
    return _Term(call(Reduce("sum", axes), term.value), names)


def _group_dimensions(call: OperatorCall, term: _Term, groups: Sequence[Sequence[str]]) -> Value:
    """Return the term's value transposed to the order of the groups.

    groups: names of batch, row and contracted dimensions. Rows and contracted dimensions are merged
    to one dimension each.
    """
    order = [name for group in groups for name in group]
    axes = [term.names.index(name) for name in order]
    x = term.value
    if axes != sorted(axes):
        x = call(Transpose(tuple(axes)), x)
    sizes = dict(zip(order, x.type.shape, strict=True))
    batch, rows, depth = groups
    merged = (prod(sizes[n] for n in group) for group in (rows, depth))
    return call.reshape(x, (*(sizes[n] for n in batch), *merged))


def _contract(call: OperatorCall, a: _Term, b: _Term, output: set[str]) -> _Term:
    """Return the product of two terms, summed along shared dimensions that are not in `output`."""
    a, b = _sum_out(call, a, output | set(b.names)), _sum_out(call, b, output | set(a.names))
    sizes = [dict(zip(t.names, t.value.type.shape, strict=True)) for t in (a, b)]
    shared = [n for n in a.names if n in b.names]
    for name in shared:
        if sizes[0][name] != sizes[1][name] and (1 not in (sizes[0][name], sizes[1][name])):
            raise ShapeError(f"Einsum: {name!r} is {sizes[0][name]} and {sizes[1][name]} long")
    contracted = [n for n in shared if n not in output and sizes[0][n] == sizes[1][n]]
    if any(n not in output and n not in contracted for n in shared):
        # One of the two has size 1 there and broadcasts. The other one is summed first.
        a = _sum_broadcast(call, a, sizes[0], sizes[1], output)
        b = _sum_broadcast(call, b, sizes[1], sizes[0], output)
        return _contract(call, a, b, output)
    batch = [n for n in shared if n in output]
    rows = [n for n in a.names if n not in shared]
    columns = [n for n in b.names if n not in shared]
    result_sizes = {n: max(sizes[0].get(n, 1), sizes[1].get(n, 1)) for n in (*a.names, *b.names)}
    result_sizes |= {n: 0 for n in result_sizes if 0 in (sizes[0].get(n, 1), sizes[1].get(n, 1))}
    x, y = (
        _group_dimensions(call, a, (batch, rows, contracted)),
        _group_dimensions(call, b, (batch, columns, contracted)),
    )
    if contracted:
        result = product(call, x, y, transposed=True)
    else:
        y = call.reshape(y, (*y.type.shape[:-2], 1, y.type.shape[-2]))
        result = call.pointwise("a * b", x, y)
    names = (*batch, *rows, *columns)
    return _Term(call.reshape(result, tuple(result_sizes[n] for n in names)), names)


def _sum_broadcast(
    call: OperatorCall,
    term: _Term,
    sizes: dict[str, int],
    other_sizes: dict[str, int],
    output: set[str],
) -> _Term:
    """Sum a term along shared dimensions of another size, unless they are in `output`.

    sizes, other_sizes: of the two terms' dimensions by name.
    """
    summed = {
        n for n in term.names if n in other_sizes and n not in output and sizes[n] != other_sizes[n]
    }
    return _sum_out(call, term, set(term.names) - summed)


def _einsum(call: OperatorCall, *operands: Value) -> Value:
    if not operands:
        raise ShapeError("Einsum: at least one operand must be there")
    terms, result = _read(call, operands)
    terms = [_diagonal(call, term) for term in terms]
    output = terms[0]
    for number, term in enumerate(terms[1:], 2):
        needed = {name for later in terms[number:] for name in later.names}
        output = _contract(call, output, term, needed | set(result))
    output = _sum_out(call, output, set(result))
    order = tuple(output.names.index(name) for name in result)
    if order != tuple(range(len(order))):
        return call(Transpose(order), output.value)
    return call(Identity(), output.value)


def product(call: OperatorCall, a: Value, b: Value, *, transposed: bool = False) -> Value:
    """Return a (..., m, k) times b (..., k, n), or (..., n, k) if `transposed`, in their dtype.

    For k = 0 the result is 0.
    """
    if a.type.dtype is not b.type.dtype:
        raise ShapeError(f"{call.name}: factors must be of one type, got {a.type} and {b.type}")
    if a.type.dtype.kind == "float" and a.type.dims[-1:] != (0,):
        return matmul(call, a, b, transposed=transposed)
    if transposed:
        b = call(Transpose((*range(len(b.type.dims) - 2), -1, -2)), b)
    return integer_matmul(call, a, b)


def _matmul(call: OperatorCall, a: Value, b: Value) -> Value:
    return product(call, a, b)


def _scale(call: OperatorCall, x: Value, by: float) -> Value:
    """Return x times a float attribute, which must be integral for integers x."""
    if by == 1.0:
        return x
    if x.type.dtype.kind == "float":
        return call.pointwise("a * b", x, float(by))
    if by != int(by):
        raise UnsupportedOpError(f"{call.name}: integers by {by}")
    return call.pointwise("a * b", x, int(by))


def gemm(call: OperatorCall, a: Value, b: Value, c: Value | None = None) -> Value:
    """Return alpha a b + beta c, with a and b transposed as attributes say; c broadcasts."""
    if len(a.type.dims) != 2 or len(b.type.dims) != 2:
        raise ShapeError(f"{call.name}: factors must be matrices, got {a.type} and {b.type}")
    if call.get("transA", 0):
        a = call(Transpose((1, 0)), a)
    y = product(call, a, b, transposed=bool(call.get("transB", 0)))
    y = _scale(call, y, call.get("alpha", 1.0))
    beta = call.get("beta", 1.0)
    if c is None or beta == 0.0:
        return y
    if broadcast({"c": c.type.shape, "y": y.type.shape}) != y.type.shape:
        raise ShapeError(f"{call.name}: c {c.type} does not broadcast to {y.type}")
    return call.pointwise("a + b", y, _scale(call, c, beta))


def _det(call: OperatorCall, x: Value) -> Value:
    """Return determinants of matrices of up to 3 rows. Raises UnsupportedOpError for others."""
    *batch, n, m = x.type.shape
    if n != m or not 1 <= n <= 3:
        raise UnsupportedOpError(f"Det: of {n} x {m} matrices")
    rows = [
        [call(Slice((i, j), (i + 1, j + 1), (-2, -1), (1, 1)), x) for j in range(n)]
        for i in range(n)
    ]
    if n == 1:
        result = rows[0][0]
    elif n == 2:
        result = call.pointwise("a * d - b * c", *rows[0], *rows[1])
    else:
        (a, b, c), second, third = rows
        minors = [
            call.pointwise("a * d - b * c", second[i], second[j], third[i], third[j])
            for i, j in ((1, 2), (0, 2), (0, 1))
        ]
        result = call.pointwise("a * d - b * da + c * db", a, b, c, *minors)
    return call.reshape(result, tuple(batch))


ENTRIES = (
    Converter("MatMul", 1, _matmul),
    Converter("Gemm", 1, gemm),
    Converter("Det", 11, _det),
    Converter("Einsum", 12, _einsum),
)
