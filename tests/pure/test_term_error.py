"""Errors relative to the terms of a result: right results are, and steps excuse no wrong ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glnn.validation.comparison import term_error

Array = np.ndarray
ALLOWED = 1e-5
BYTES = np.arange(256.0)
TENTHS = (np.arange(1, 256) * np.float32(0.1)).astype(np.float32).astype(np.float64)
NORMAL = np.random.default_rng(3).standard_normal(256).astype(np.float32).astype(np.float64)
STEPS: dict[str, tuple[Callable[[Array], Array], Array]] = {
    "floor": (np.floor, BYTES),
    "ceil": (np.ceil, BYTES),
    "round": (np.rint, BYTES + 0.5),
    "truncate": (np.trunc, BYTES - 128),
    "sign": (np.sign, NORMAL),
    "mod": (lambda x: np.mod(x, 1), BYTES),
    "remainder": (lambda x: np.fmod(x, 0.25), BYTES / 4),
    "comparison": (lambda x: np.where(x >= 100, x, -x), BYTES),
    "bool": (lambda x: (x > 100).astype(x.dtype), BYTES),
    "floor of numbers between": (np.floor, 100 * NORMAL),
    "floor of a product": (lambda x: np.floor(x * x.dtype.type(10)), TENTHS),
    "quantized": (lambda x: np.rint(x / x.dtype.type(0.1)) * x.dtype.type(0.1), TENTHS),
    "sum of floors": (lambda x: np.floor(x).reshape(16, 16).sum(1), BYTES),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_right_result_with_steps(name: str) -> None:
    """That of float32, too, which has the places of some steps rounded."""
    compute, x = STEPS[name]
    for got in (compute(x), compute(x.astype(np.float32)).astype(np.float64)):
        assert term_error(lambda named: compute(named["x"]), {"x": x}, got) <= 1e-7


@pytest.mark.parametrize("places", ["all", "half", "one"])
@pytest.mark.parametrize("off", [1.0, 0.5])
@pytest.mark.parametrize("name", STEPS)
def test_a_result_that_is_wrong_by_one(name: str, off: float, places: str) -> None:
    compute, x = STEPS[name]
    got = compute(x)
    count = {"all": len(got), "half": len(got) // 2, "one": 1}[places]
    got[-count:] += off
    assert term_error(lambda named: compute(named["x"]), {"x": x}, got) > ALLOWED


@pytest.mark.parametrize("name", [n for n in STEPS if n not in ("floor of a product", "quantized")])
def test_a_result_of_the_step_below(name: str) -> None:
    """Of operands at a step, where nothing is rounded, the number before it is as wrong."""
    compute, x = STEPS[name]
    assert term_error(lambda named: compute(named["x"]), {"x": x}, compute(x) - 1) > ALLOWED


def test_the_step_beside_where_the_step_is_rounded() -> None:
    """float32 has 0.3f * 10 = 3, float64 3.0000001: either floor of such a product is right."""
    compute, x = STEPS["floor of a product"]
    product = x * 10
    got = np.where(np.abs(product - np.rint(product)) < 1e-4, np.rint(product) - 1, compute(x))
    assert term_error(lambda named: compute(named["x"]), {"x": x}, got) <= 1e-7


def product(named: dict[str, Array]) -> Array:
    return named["x"] @ named["w"]


CANCELLING: dict[str, Callable[[dict[str, Array]], Array]] = {
    "product": product,
    "relu": lambda named: np.maximum(product(named), 0),
    "largest": lambda named: product(named).max(0, keepdims=True),
    "constant": lambda named: (named["x"] * 1e-3 + named["x"].dtype.type(3000)) - 3000,
    "square root": lambda named: np.sqrt(np.abs(product(named))),
    "sum": lambda named: named["x"].sum(1) - named["x"][:, ::-1].sum(1),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_terms_that_cancel(name: str) -> None:
    """What float32 has of them is right, in any order of additions; a fifth of a term is not."""
    compute = CANCELLING[name]
    w = np.cos(2 * np.pi * np.outer(np.arange(64), np.arange(1, 64)) / 64)
    x = np.repeat(NORMAL[:8, None], 64, 1)
    exact = {n: a.astype(np.float32).astype(np.float64) for n, a in {"x": x, "w": w}.items()}
    turned = {"x": exact["x"][:, ::-1], "w": exact["w"][::-1]}
    for named in (exact, turned):
        got = compute({n: a.astype(np.float32) for n, a in named.items()}).astype(np.float64)
        if name == "constant" and named is turned:
            continue  # it is of other places
        assert term_error(compute, exact, got) <= ALLOWED
        assert term_error(compute, exact, got + 0.2) > ALLOWED


def test_what_is_wrong_in_float32_is_no_term() -> None:
    """More than rounding can be, or in one place."""
    for places in (slice(None), slice(5, 6)):

        def compute(named: dict[str, Array], places: slice = places) -> Array:
            x = named["x"].copy()
            x[places] += x.dtype == np.float32
            return x

        got = compute({"x": NORMAL.astype(np.float32)}).astype(np.float64)
        assert term_error(compute, {"x": NORMAL}, got) > 0.01


def test_nan_and_infinities_have_to_be_where_they_are_expected() -> None:
    x = np.array([0.0, 1.0, np.inf, np.nan])
    assert term_error(lambda named: named["x"], {"x": x}, x) == 0
    assert term_error(lambda named: named["x"], {"x": x}, np.array([0, 1, np.inf, 1])) == np.inf
