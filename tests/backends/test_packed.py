"""Operands that lie packed, as NumPy has them: bytes and halves that kernels take apart."""

from __future__ import annotations

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.graph.expression import Arg, call
from glnn.graph.operators import Pointwise
from tests.backends.harness import run

EVERY = {
    "uint8": np.arange(256, dtype=np.uint8),
    "int8": np.arange(-128, 128).astype(np.int8),
    "bool": np.array([True, False, False, True, True]),
    "float16": np.arange(65536, dtype=np.uint16).view(np.float16),
}
SHAPES = [(), (1,), (3,), (5,), (7,), (127,), (129,), (3, 7), (2, 3, 5, 7)]


def numbers(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Any of the dtype so called, finite ones of float16."""
    every = EVERY[name][np.isfinite(EVERY[name].astype(np.float32))]
    return np.random.default_rng(seed).choice(every, shape)


def as_it_is(backend: GlBackend, x: np.ndarray) -> None:
    for lies in ("packed", "packed16")[: 1 if x.dtype == np.float16 else 2]:
        got = run(backend, Pointwise(Arg(0)), {"x0": x}, backend.name, layouts={"x0": lies})
        expected = x.astype(np.float32) if x.dtype == np.float16 else x
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", EVERY)
def test_every_number(backend: GlBackend, name) -> None:
    """Subnormal halves, infinities and NaN too; of a count that fills no last word."""
    as_it_is(backend, np.append(EVERY[name], EVERY[name][1]))
    with np.errstate(invalid="ignore"):
        x = EVERY[name].astype(np.float32)
    op = Pointwise(call("neg", call("cast_float32", Arg(0))))
    operands = {"x0": EVERY[name]}
    got = run(backend, op, operands, backend.name, layouts={"x0": "packed"})
    np.testing.assert_array_equal(got, -x)


@pytest.mark.parametrize("name", EVERY)
def test_any_shape(backend: GlBackend, name) -> None:
    for shape in SHAPES:
        as_it_is(backend, np.asarray(numbers(name, shape)))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "shapes",
    [
        [(3, 7), (3, 7)],
        [(3, 7), ()],
        [(7, 129), (129,)],
        [(7, 8), (8,)],
        [(7, 8), (7, 1)],
        [(2, 3, 5, 7), (3, 1, 1)],
        [(2, 3, 4, 2), (1, 3, 1, 1)],
        [(2, 1, 3, 1, 2, 1, 3, 1), (1, 2, 1, 3, 1, 2, 1, 5)],
    ],
    ids=str,
)
def test_shapes_that_broadcast(backend: GlBackend, name, shapes) -> None:
    """What is packed may be the smaller one, or both are; the other has rows of whole vec4, too."""
    x, y = (np.asarray(numbers(name, shape, seed)) for seed, shape in enumerate(shapes))
    wide = y.astype(np.float32) / 256  # exact, and so are the sums
    cast = [call("cast_float32", Arg(i)) for i in range(2)]
    total = Pointwise(call("add", *cast))
    for first, second in ((x, y), (y, x)):
        layouts = {"x0": "packed", "x1": "packed"}
        got = run(backend, total, {"x0": first, "x1": second}, backend.name, layouts=layouts)
        np.testing.assert_array_equal(got, x.astype(np.float32) + y.astype(np.float32))
    for lies in ("R", "R4"):
        layouts = {"x0": "packed16" if name != "float16" else "packed", "x1": lies}
        got = run(backend, total, {"x0": x, "x1": wide}, backend.name, layouts=layouts)
        np.testing.assert_array_equal(got, x.astype(np.float32) + wide)
        wider = np.array(np.broadcast_to(wide, np.broadcast_shapes(x.shape, y.shape)))
        got = run(backend, total, {"x0": y, "x1": wider}, backend.name, layouts=layouts)
        np.testing.assert_array_equal(got, y.astype(np.float32) + wider)


def test_bytes_meet_their_own_rules(backend: GlBackend) -> None:
    """Sums of bytes wrap, bools are logical, whether packed or not."""
    x, y = numbers("uint8", (3, 7)), numbers("uint8", (3, 7), 1)
    layouts = {"x0": "packed", "x1": "R"}
    op = Pointwise(call("add", Arg(0), Arg(1)))
    got = run(backend, op, {"x0": x, "x1": y}, backend.name, layouts=layouts)
    np.testing.assert_array_equal(got, x + y)
    chosen = Pointwise(call("where", Arg(0), Arg(1), 7))
    got = run(backend, chosen, {"x0": x % 2 == 1, "x1": y}, backend.name, layouts=layouts)
    np.testing.assert_array_equal(got, np.where(x % 2 == 1, y, 7))
