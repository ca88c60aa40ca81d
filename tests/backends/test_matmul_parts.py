from __future__ import annotations

import numpy as np
import pytest

from glnn.errors import ShapeError, UnsupportedOpError
from glnn.graph.operators.matmul import COLUMNS, ROWS, TRANSPOSED, MatmulParts
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.harness import TOLERANCE, kernels, of_halves, run

SIZES = [(1, 1, 1), (2, 3, 7), (5, 1, 6), (3, 7, 9), (7, 5, 16), (33, 17, 129), (129, 31, 127)]
CRONIN = {"ab": (1, 2, 3, 4), "abt": (4,), "abt_narrow": (1, 2, 3), "atb": (1,), "atbt": (1,)}
WIDTHS = [(f"cronin_{name}", width) for name, widths in CRONIN.items() for width in widths]


def expected(x: np.ndarray, weight: np.ndarray, op: MatmulParts) -> np.ndarray:
    """Part after part, as the docstring of the op sets them out."""
    (m, k), n = x.shape, len(weight)
    width = 4 * -(-k // (4 * op.parts)) if op.order == ROWS else k // op.parts
    out = np.zeros(op.shape_of({"x": x.shape, "weight": weight.shape}))
    for part in range(op.parts):
        taken = slice(part * width, (part + 1) * width)
        product = oracle.matmul(x[:, taken], weight[:, taken])
        if op.order == ROWS:
            out[part * m : (part + 1) * m] = product
        elif op.order == COLUMNS:
            out[0, :, :, part] = product.T
        else:
            out[0, :, part, :] = product.T
    assert out.size == op.parts * m * n
    return out


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize("parts", [1, 2, 5, 16, 40])
def test_parts_of_any_size(opened, rng, m, n, k, parts) -> None:
    op, x, weight = MatmulParts(parts), rng((m, k)), rng((n, k))
    got = run(opened("feedback"), op, {"x": x, "weight": weight}, "feedback")
    assert oracle.error(got, expected(x, weight, op)) <= TOLERANCE


@pytest.mark.parametrize(("name", "kernel", "operand"), of_halves("matmul_parts"))
def test_halves(opened, rng, name, kernel, operand) -> None:
    for m, n, k in SIZES[1::2]:
        op, operands = MatmulParts(5), {"x": rng((m, k)), "weight": rng((n, k))}
        operands[operand] = operands[operand].astype(np.float16)
        got = run(opened(name), op, operands, kernel)
        exact = (array.astype(np.float64) for array in operands.values())
        assert oracle.error(got, expected(*exact, op)) <= TOLERANCE


@pytest.mark.parametrize(
    ("kernel", "width", "m", "n", "k"),
    [(*c, *size) for c in WIDTHS for size in SIZES if size[2] % c[1] == 0],
)
def test_every_width_of_an_attribute(opened, rng, kernel, width, m, n, k) -> None:
    op = MatmulParts(k // width, TRANSPOSED if "_at" in kernel else COLUMNS)
    x, weight = rng((m, k)), rng((n, k))
    got = run(opened("feedback"), op, {"x": x, "weight": weight}, kernel)
    assert oracle.error(got, expected(x, weight, op)) <= TOLERANCE


def test_every_kernel_is_tried() -> None:
    names = {name for _, name in kernels("matmul_parts")}
    assert names == {"feedback", *(name for name, _ in WIDTHS)}


def test_a_transposed_operand_takes_one_number_a_vertex(opened) -> None:
    spec = OpSpec.create(MatmulParts(4, TRANSPOSED), {"x": (3, 8), "weight": (5, 8)}, {})
    with pytest.raises(UnsupportedOpError, match="cronin_atb: WIDTH is 2, it needs 1"):
        opened("feedback").choose(spec, "cronin_atb")


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="order must be one of"):
        MatmulParts(2, "diagonal")
    with pytest.raises(ShapeError, match="at least one part"):
        MatmulParts(0)
    with pytest.raises(ShapeError, match=r"3 parts do not divide k of x \(2, 8\)"):
        MatmulParts(3, COLUMNS).shape_of({"x": (2, 8), "weight": (5, 8)})
    with pytest.raises(ShapeError, match="must agree in their last dimension"):
        MatmulParts(3).shape_of({"x": (2, 8), "weight": (5, 7)})
