"""Matrix products of any rank: batches that broadcast, as one `operators.Matmul`."""

from __future__ import annotations

from dataclasses import dataclass

from glnn.errors import ShapeError
from glnn.graph.compose.add import Add, joined, parted
from glnn.graph.graph import Value
from glnn.graph.operators import Expand, Matmul, Squeeze, Transpose, Unsqueeze
from glnn.types import Dim, TensorType

Dims = tuple[Dim, ...]


@dataclass(frozen=True)
class Product:
    """A NumPy matmul as the operator `Matmul`, x (rows, k) by weight (..., n, k)."""

    a: Dims
    """Broadcast shape of the first factor: (..., m, k)."""
    b: Dims
    """Broadcast shape of the second factor, transposed: (..., n, k)."""
    swapped: bool
    """True where b is x and a the weight: the result, (..., n, m), must then be transposed."""
    result: Dims
    """The result's dimensions: (..., m, n), without m where a is a vector, without n where b is."""

    @property
    def x(self) -> Dims:
        """Shape of the factor that becomes x, before its matrices are stacked into rows."""
        return self.b if self.swapped else self.a

    @property
    def weight(self) -> Dims:
        """Shape of the factor that becomes the weight, before its batch dimensions are flattened to
        one.
        """
        return self.a if self.swapped else self.b

    @classmethod
    def of(cls, a: Dims, b: Dims) -> Product:
        """Return the product of a (..., m, k) and b (..., n, k), or vectors (k,), with broadcast
        batch dimensions.

        Raises ShapeError where they do not fit.
        """
        if not a or not b:
            raise ShapeError(f"matmul: factors must have at least one dimension, got {a} and {b}")
        wide, high = (one if len(one) > 1 else (1, *one) for one in (a, b))
        stack = _together(wide[:-2], high[:-2])
        if wide[-1] != high[-1] or stack is None:
            theirs = (*b[:-2], *b[-1:], *b[-2:-1])  # as it is given, k before n
            raise ShapeError(f"matmul: op(a) {a} and op(b) {theirs} do not fit")
        ends = (*(wide[-2:-1] if len(a) > 1 else ()), *(high[-2:-1] if len(b) > 1 else ()))
        result = (*stack, *ends)
        if all(dim == 1 for dim in high[:-2]):
            return cls((*stack, *wide[-2:]), high[-2:], False, result)
        if all(dim == 1 for dim in wide[:-2]):
            return cls(wide[-2:], (*stack, *high[-2:]), True, result)
        return cls((*stack, *wide[-2:]), (*stack, *high[-2:]), False, result)


def matmul(add: Add, a: Value, b: Value, *, transposed: bool = False) -> Value:
    """Multiply a (..., m, k) by b (..., k, n), by the rules of numpy.matmul, float32.

    transposed: b is (..., n, k). Both may be computed. Only the first size of all may be unknown.
    Raises ShapeError where they do not fit.
    """
    rank = len(b.type.dims)
    if rank > 1 and not transposed:
        b = add(Transpose((*range(rank - 2), rank - 1, rank - 2)), b)
    rows, columns = a.type.dims, b.type.dims
    found = Product.of(rows, columns)
    a, b = _spread(add, a, found.a), _spread(add, b, found.b)
    x, weight = (b, a) if found.swapped else (a, b)
    x = joined(add, x, 0, len(found.x) - 1)
    if len(found.weight) > 3:
        weight = joined(add, weight, 0, len(found.weight) - 2)
    result = parted(add, add(Matmul(), x, weight), 0, *found.x[:-1])
    if found.swapped:
        rank = len(result.type.dims)
        result = add(Transpose((*range(rank - 2), rank - 1, rank - 2)), result)
    vectors = tuple(-i for i, factor in ((1, columns), (2, rows)) if len(factor) == 1)
    return add(Squeeze(vectors), result) if vectors else result


def _together(one: Dims, other: Dims) -> Dims | None:
    """The dimensions that both have when they broadcast; None where they do not."""
    rank = max(len(one), len(other))
    found: list[Dim] = []
    for n, m in zip(
        (1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other, strict=True
    ):
        if 1 not in (n, m) and n != m:
            return None
        found.append(m if n == 1 else n)
    return tuple(found)


def _spread(add: Add, value: Value, dims: Dims) -> Value:
    """Broadcast `value` to `dims`; dimensions of size 1 before them are left out."""
    extra = len(dims) - len(value.type.dims)
    if extra > 0:
        value = add(Unsqueeze(tuple(range(extra))), value)
    elif extra < 0:
        value = add(Squeeze(tuple(range(-extra))), value)
    if value.type.dims == dims:
        return value
    return add(Expand(TensorType(dims).shape), value)
