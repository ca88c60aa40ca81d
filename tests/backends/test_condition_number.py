"""Kernels are judged by what the terms of their sums allow: no right one is refused by chance."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.backends.launch import GlLaunch
from glnn.compiler import evaluate
from glnn.doctor.kernel_accuracy import PROBLEMS
from glnn.errors import UnsupportedOpError
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import Arg, call, formula
from glnn.graph.operators import ArgReduce, Conv2d, Matmul, Pointwise, Pool2d, Reduce
from glnn.kernels.op_spec import OpSpec
from glnn.kernels.verdicts import Verdict, Verdicts
from glnn.validation.examination import examine_choices
from glnn.validation.reference_case import ReferenceCase
from tests.backends.harness import BACKENDS
from tests.oracle import error
from tests.shape_sweep import examined_problems, small_problems

pytestmark = pytest.mark.usefixtures("by_methods")

SQUARES = call("sub", call("mul", Arg(0), Arg(0)), call("mul", Arg(1), Arg(1)))
SMALL = {
    "pool": (Pool2d("average", (2, 2), (2, 2)), {"x": (1, 1, 4, 4)}),
    "ceil": (Pool2d("average", (3, 3), (2, 2), ceil_mode=True), {"x": (1, 1, 4, 4)}),
    "padded": (Pool2d("average", (3, 3), (3, 3), (1, 1, 1, 1)), {"x": (1, 1, 4, 4)}),
    "convolution": (Conv2d(), {"x": (1, 17, 4, 4), "weight": (1, 17, 4, 4)}),
    "product": (Matmul(), {"x": (1, 96), "weight": (1, 96)}),
    "mean": (Reduce("mean", (0, 1)), {"x0": (5, 3)}),
    "squares": (Pointwise(SQUARES), {"x0": (7, 5), "x1": (7, 5)}),
    "cancelled": (Pointwise(call("sub", call("add", Arg(0), 3000.0), 3000.0)), {"x0": (40, 5)}),
}


@pytest.fixture
def examined(backend, monkeypatch, tmp_path) -> GlBackend:
    """A backend that has seen no kernel yet, with a cache of its own."""
    monkeypatch.setenv("GLNN_TRUST", "0")
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    return BACKENDS[backend.name](backend.device)


@pytest.mark.parametrize("name", SMALL)
def test_no_kernel_is_refused_for_terms_that_cancel(examined, name) -> None:
    op, shapes = SMALL[name]
    assert examined_problems(examined, [OpSpec.create(op, shapes, {})]) == []


@pytest.mark.parametrize("op", sorted(PROBLEMS))
def test_no_kernel_is_refused_at_small_shapes(examined, op) -> None:
    """`make check-examination` has many more of them."""
    assert examined_problems(examined, small_problems(op, 2)) == []


@pytest.mark.parametrize("finish", ["trunc(a)", "cast_float32(cast_int32(a))", "floor(2.0 * a)"])
def test_results_near_a_step_are_not_judged(finish) -> None:
    """Of sums that become integers, float32 may be on the other side of those that almost are."""
    shapes = {"x": (5, 16), "weight": (40_000, 16)}
    spec = OpSpec.create(Matmul(), shapes, {}, Epilogue(formula(finish)))
    case = ReferenceCase.create(spec, special_values=False, whole=True)
    sums = case.operands["x"].astype("f8") @ case.operands["weight"].astype("f8").T
    sums *= 2 if "2.0" in finish else 1
    away = np.abs(sums - np.rint(sums))
    if finish != "floor(2.0 * a)":
        away[np.abs(sums) < 0.5] = 1  # on both sides of 0 the integer is 0
    mask = case.tolerance().unreliable
    assert (away < 1e-6).any() and mask is not None
    assert mask[away < 1e-6].all() and not mask[away > 1e-3].any()


def test_integers_have_no_numbers_near_a_step() -> None:
    spec = OpSpec.create(
        ArgReduce("max", 1), {"x0": (7, 40)}, {}, Epilogue(formula("cast_float32(a)"))
    )
    case = ReferenceCase.create(spec, special_values=False, whole=True)
    assert case.tolerance().unreliable is None


@pytest.mark.parametrize("seed", range(9))
def test_the_condition_is_that_of_the_terms(seed) -> None:
    """Of a product of one result, the norm of its terms over the result, in float64."""
    spec = OpSpec.create(Matmul(), {"x": (1, 96), "weight": (1, 96)}, {})
    for one in [ReferenceCase.create(spec, special_values=False, whole=True, seed=seed)]:
        terms = one.operands["x"].astype("f8") * one.operands["weight"]
        expected = max(1.0, np.sqrt(np.square(terms).sum()) / abs(terms.sum()))
        assert expected / 4 <= one.tolerance().condition <= 4 * expected


def _changed(monkeypatch, change: Callable[[np.ndarray], None], most: int | None = None) -> None:
    """Have `change` done to each result of at most so many words that is made by a launch."""
    perform = GlLaunch.__call__

    def performed(self):
        perform(self)
        if most is None or self.out.words <= most:
            copy = self.out.push(self.out._device)
            numbers = np.empty(self.out.words, np.float32)
            copy.read_into(numbers, size=numbers.nbytes, offset=self.out.first)
            change(numbers)
            self.out._device.write_buffer(copy, numbers, self.out.first)

    monkeypatch.setattr(GlLaunch, "__call__", performed)


def _scaled(numbers: np.ndarray) -> None:
    numbers *= np.float32(1.003)


def _shifted(numbers: np.ndarray) -> None:
    numbers += np.float32(0.01)


def _first_lost(numbers: np.ndarray) -> None:
    numbers[0] = 0


@pytest.mark.parametrize("change", [_scaled, _shifted, _first_lost], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["pool", "ceil", "padded", "convolution", "product", "mean"])
def test_kernels_that_are_wrong_at_small_sizes_are_found(examined, monkeypatch, name, change):
    op, shapes = SMALL[name]
    spec = OpSpec.create(op, shapes, {})
    chosen = examined.choose(spec)
    if chosen.stages:
        pytest.skip("its stages are examined")
    _changed(monkeypatch, change)
    assert examine_choices(examined, [(chosen, spec)])
    assert "are wrong, off by" in str(examined.why_not(spec, chosen.name))


def test_a_kernel_that_is_wrong_is_so_at_those_sizes(examined, rng, monkeypatch) -> None:
    """One that is wrong in small results only: larger ones are computed."""
    op, small, large = Pool2d("average", (2, 2), (2, 2)), (1, 1, 4, 4), (3, 1, 28, 28)
    with monkeypatch.context() as patch:
        _changed(patch, _scaled, 64)
        with pytest.raises(UnsupportedOpError, match="are wrong, off by"):
            evaluate(op, {"x": rng(small)}, examined)
        x = rng(large)
        assert error(evaluate(op, {"x": x}, examined), op.reference(x)[0]) <= 1e-5
    with pytest.raises(UnsupportedOpError, match="are wrong, off by"):
        evaluate(op, {"x": rng(small)}, examined)


def test_a_kernel_that_is_wrong_once_is_looked_at_again(examined, rng, monkeypatch) -> None:
    looks = 0

    def once(numbers: np.ndarray) -> None:
        nonlocal looks
        looks += 1
        numbers *= np.float32(1.01 if looks == 2 else 1)

    spec = OpSpec.create(*SMALL["pool"], {})
    chosen = examined.choose(spec)
    _changed(monkeypatch, once)
    assert not examine_choices(examined, [(chosen, spec)]) and looks > 2


def test_verdicts_of_a_former_format_are_discarded(examined, tmp_path, recwarn) -> None:
    examined.verdicts.keep({"compute pool2d window 0 A=0 depth=4": Verdict(wrong="off by 4.6e-05")})
    (path,) = tmp_path.glob("verdicts/*.json")
    kept = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(kept | {"form": 1}), "utf-8")
    read = BACKENDS[examined.name](examined.device)
    assert not read.verdicts.found and not recwarn.list


def _keep(verdicts: Verdicts, names: list[str]) -> None:
    for name in names:
        verdicts.keep({f"compute pool2d {name} 0": Verdict(right=((1, 1, 1, 0),))})


def test_processes_that_keep_verdicts_at_once_lose_none(examined) -> None:
    """Each of two has verdicts of its own to keep, again and again."""
    mine = [[f"{who}-{i}" for i in range(20)] for who in "ab"]
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        empty = replace(examined.verdicts, found={})
        pool.starmap(_keep, [(empty, names) for names in mine], 1)
    kept = BACKENDS[examined.name](examined.device).verdicts.found
    assert {key.split(" ")[2] for key in kept} == {name for names in mine for name in names}


@pytest.mark.parametrize("name", ["product", "convolution"])
def test_a_reference_of_float32_that_is_off_refuses_nothing(examined, monkeypatch, name) -> None:
    """Where it does not tell for sure that a kernel is right, float64 decides."""
    op, shapes = SMALL[name]
    made = ReferenceCase.create.__func__
    exact: list[bool] = []

    def off(cls, *args, **named) -> ReferenceCase:
        known = made(cls, *args, **named)
        exact.append(known.exact)
        return replace(known, result=known.result * np.float32(1.01)) if known.quick else known

    monkeypatch.setattr(ReferenceCase, "create", classmethod(off))
    spec = OpSpec.create(op, shapes, {})
    assert not examine_choices(examined, [(examined.choose(spec), spec)])
    assert exact.count(True) == exact.count(False) > 0


def test_less_than_what_is_allowed_is_seen(examined, monkeypatch) -> None:
    """float32 alone does not let a kernel pass that is off by more than half of that."""
    exact: list[bool] = []
    made = ReferenceCase.create.__func__

    def noted(cls, *args, **named) -> ReferenceCase:
        known = made(cls, *args, **named)
        exact.append(known.exact)
        return known

    def off(numbers: np.ndarray) -> None:
        numbers *= np.float32(1 + 8e-6)

    monkeypatch.setattr(ReferenceCase, "create", classmethod(noted))
    _changed(monkeypatch, off)
    spec = OpSpec.create(Matmul(), {"x": (5, 96), "weight": (7, 96)}, {})
    examine_choices(examined, [(examined.choose(spec), spec)])
    assert True in exact
