"""Epilogues that update operands beside the result, by every kernel that declares it."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.core.types import DType, TensorType
from glnn.errors import LimitError, ShapeError, UnsupportedOpError
from glnn.graph.epilogue import Epilogue
from glnn.graph.expression import Arg, call, formula
from glnn.graph.operators import Matmul, Reduce, Softmax
from glnn.kernels import binding, kernels_for
from glnn.kernels.capability_check import fitted_rows
from glnn.kernels.cost_model import device_rates
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from glnn.validation.examination import examine_choices
from tests import oracle
from tests.backends.harness import BACKENDS, TOLERANCE, run_kernel, taken

# SGD's: a momentum b of the gradient a is the result, a parameter c with the rate d is updated.
SGD = Epilogue(
    formula("0.9 * b + a"), ("full", "full", "one"), ((1, formula("c - d * (0.9 * b + a)")),)
)
# Adam's: of the gradient a two slots b and c and a parameter d; long, with a root for each number.
ADAM = Epilogue(
    formula("0.9 * b + 0.1 * a"),
    ("full", "full", "full"),
    (
        (1, formula("0.99 * c + 0.01 * square(a)")),
        (2, formula("d - (0.9 * b + 0.1 * a) / (sqrt(abs(0.99 * c + 0.01 * square(a))) + 0.5)")),
    ),
)  # fmt: skip
# A cross-entropy's: of logarithms a of probabilities, a label b of each row, the classes c and a
# factor d the gradient, in rows that may be padded, and more of each place.
SOFTMAX = Epilogue(
    Arg(0),
    ("row", "column", "one", "padded", "full"),
    ((3, call("add", formula("(exp(a) - cast_float32(equal(b, c))) * d"), Arg(5))),),
)
ROWS = [(1, 1), (3, 7), (5, 12), (7, 31), (9, 128), (4, 260), (2, 3, 10), (2, 3, 64)]
SIZES = [(1, 1, 1), (3, 7, 5), (7, 12, 129), (64, 10, 31), (129, 127, 33), (33, 128, 64)]
REDUCED = [((7, 129), (0,)), ((128, 12), (0,)), ((129, 7), (1,)), ((5, 8, 3, 12), (0, 2))]
DECLARED = [
    (op, kernel.name)
    for op in ("matmul", "reduce")  # whose shaders normed and quantised products share
    for kernel in kernels_for(op, "compute")
    if kernel.epilogue is not None and kernel.epilogue.updates
]


def expected(
    epilogue: Epilogue, plain: np.ndarray, beside: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """By NumPy in float64, written from the definitions."""
    e1, e2, e3 = (array.astype(np.float64) for array in beside.values())
    if epilogue is SGD:
        momentum = 0.9 * e1 + plain
        return {"out": momentum, "e2": e2 - e3 * momentum}
    m, v = 0.9 * e1 + 0.1 * plain, 0.99 * e2 + 0.01 * plain**2
    return {"out": m, "e2": v, "e3": e3 - m / (np.sqrt(np.abs(v)) + 0.5)}


def problems(op: str, rng):
    """Operators, operands and their plain results in float64."""
    if op == "matmul":
        for m, n, k in SIZES:
            operands = {"x": rng((m, k)), "weight": rng((n, k))}
            yield Matmul(), operands, oracle.matmul(*operands.values())
    else:
        for shape, axes in REDUCED:
            x = rng(shape)
            yield Reduce("sum", axes), {"x0": x}, x.astype(np.float64).sum(axes)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize(
    "kernel", [k.name for k in kernels_for("softmax", "compute") if k.epilogue]
)
def test_the_gradient_of_a_cross_entropy(opened, rng, kernel, padded) -> None:
    """What softmax's kernels store beside their results: labels and classes are integers."""
    backend, ran = opened("compute"), 0
    for shape in ROWS:
        columns, rows = shape[-1], prod(shape[:-1])
        x = 9 * rng(shape)
        labels = np.arange(rows, dtype=np.int32) * 5 % columns
        beside = {
            "e1": labels,
            "e2": np.arange(columns, dtype=np.int32),
            "e3": np.array([0.25], np.float32),
            "e4": rng(shape),
            "e5": rng(shape),
        }
        operands = {"x": x, **beside}
        types = {name: TensorType.from_array(array) for name, array in operands.items()}
        extents = tuple(e if e != "padded" or padded else "full" for e in SOFTMAX.extents)
        epilogue = Epilogue(SOFTMAX.expr, extents, SOFTMAX.updates)
        layouts = {"e4": "R4"} if padded else {}
        if padded and len(shape) > 2:
            with pytest.raises(ShapeError, match="is no matrix"):
                OpSpec.create(Softmax(-1, log=True), types, layouts, epilogue)
            continue
        spec = OpSpec.create(Softmax(-1, log=True), types, layouts, epilogue)
        wide = x.astype(np.float64)
        whole = wide - wide.max(-1, keepdims=True)
        whole -= np.log(np.exp(whole).sum(-1, keepdims=True))
        one_hot = np.eye(columns)[labels].reshape(shape)
        gradient = (np.exp(whole) - one_hot) * 0.25 + beside["e5"]
        for version in versions(backend, "softmax", kernel):
            adapted = taken(version, spec)
            if adapted is None or not backend.takes(adapted, spec):
                continue
            updated: dict[str, np.ndarray] = {}
            out = run_kernel(
                backend, spec.op, operands, adapted, epilogue, layouts, updated=updated
            )
            assert oracle.error(out, whole) <= TOLERANCE, shape
            assert oracle.error(updated["e4"], gradient) <= TOLERANCE, shape
            ran += 1
    if versions(backend, "softmax", kernel):
        enough = backend.device.capabilities.max_compute_shader_storage_blocks >= 7
        assert bool(ran) == enough


def versions(backend: GlBackend, op: str, name: str) -> tuple[Kernel, ...]:
    (declared,) = (k for k in kernels_for(op, backend.name) if k.name == name)
    return fitted_rows(declared, backend.device.capabilities)


def operands_of(epilogue: Epilogue, shape: tuple[int, ...], rng) -> dict[str, np.ndarray]:
    return {
        name: rng(shape if extent == "full" else (1,))
        for name, extent in epilogue.named_extents.items()
    }


@pytest.mark.parametrize("epilogue", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize(("op", "kernel"), DECLARED)
def test_every_kernel_stores_all_of_them(opened, rng, op, kernel, epilogue) -> None:
    backend, ran, refused = opened("compute"), 0, set[str]()
    if not versions(backend, op, kernel):
        pytest.skip("the device admits none of its parameters")
    for operator, operands, plain in problems(op, rng):
        beside = operands_of(epilogue, plain.shape, rng)
        shapes = {k: a.shape for k, a in (operands | beside).items()}
        spec = OpSpec.create(operator, shapes, {}, epilogue)
        for version in versions(backend, op, kernel):
            adapted = taken(version, spec)
            if adapted is None:
                continue
            if not backend.takes(adapted, spec):
                refused.add(str(backend.why_not(spec, kernel)))
                continue
            updated: dict[str, np.ndarray] = {}
            try:
                out = run_kernel(
                    backend, operator, operands | beside, adapted, epilogue, updated=updated
                )
            except LimitError:  # what the driver alone knows
                continue
            right = expected(epilogue, plain, beside)
            assert {"out", *updated} == right.keys()
            for name, array in {"out": out, **updated}.items():
                assert oracle.error(array, right[name]) <= TOLERANCE, (name, shapes)
            ran += 1
    if not ran:
        assert refused and all("storage blocks" in reason for reason in refused), refused


@pytest.mark.parametrize("name", [*BACKENDS])
def test_others_refuse_them(opened, rng, name) -> None:
    backend = opened(name)
    spec = OpSpec.create(
        Matmul(),
        {"x": (5, 8), "weight": (4, 8), "e1": (5, 4)},
        {},
        Epilogue(Arg(0), ("full",), ((0, Arg(0)),)),
    )
    for kernel in kernels_for("matmul", name):
        if not kernel.document and kernel.epilogue is not None and not kernel.epilogue.updates:
            assert "updates no operands" in str(backend.why_not(spec, kernel.name)), kernel.name
    with pytest.raises(ShapeError, match="updates no operand of extent channel"):
        Epilogue(Arg(0), ("channel",), ((0, Arg(0)),))
    if name == "feedback":
        with pytest.raises(UnsupportedOpError):
            backend.choose(spec)


def test_what_is_updated_lies_in_no_other_memory(opened) -> None:
    """Of four storage blocks a product takes three: of two operands the one that is only read
    lies where the result does.
    """
    backend = opened("compute")
    for place in (0, 1):
        epilogue = Epilogue(formula("a + b + c"), ("full", "full"), ((place, formula("a + b")),))
        spec = OpSpec.create(
            Matmul(), {"x": (5, 8), "weight": (4, 8), "e1": (5, 4), "e2": (5, 4)}, {}, epilogue
        )
        kernel = backend.choose(spec)
        few = backend.device.capabilities.max_compute_shader_storage_blocks == 4
        assert backend.operand_in_result(kernel, spec) == (f"e{2 - place}" if few else None)


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize("wrong", ["", "+ 1.0"])
@pytest.mark.parametrize("op", ["matmul", "softmax"])
def test_a_wrong_update_is_found(opened, monkeypatch, tmp_path, wrong, op) -> None:
    """A driver that stores something else there, though the result is right."""
    monkeypatch.setenv("GLNN_TRUST", "0")
    monkeypatch.setenv("GLNN_CACHE", str(tmp_path))
    backend = BACKENDS["compute"](opened("compute").device)
    generated = binding.generated

    def miscompiled(*arguments):
        texts = generated(*arguments)
        for name in ("e2", "e4"):
            call = texts["epilogue call"]
            texts["epilogue call"] = call.replace(f"{name}_of(value", f"{name}_of(value {wrong}")
        return texts

    monkeypatch.setattr(binding, "generated", miscompiled)
    backend.device.programs.clear()
    if op == "matmul":
        shapes = {"x": (9, 8), "weight": (12, 8), "e1": (9, 12), "e2": (9, 12), "e3": (1,)}
        spec = OpSpec.create(Matmul(), shapes, {}, SGD)
    else:
        shapes = {"x": (9, 10), "e1": (9,), "e2": (10,), "e3": (1,), "e4": (9, 10), "e5": (9, 10)}
        types = {name: TensorType(shape) for name, shape in shapes.items()}
        types |= {name: TensorType(types[name].dims, DType.int32) for name in ("e1", "e2")}
        spec = OpSpec.create(Softmax(log=True), types, {"e4": "R4"}, SOFTMAX)
    kernel = backend.choose(spec)
    assert examine_choices(backend, [(kernel, spec)]) == bool(wrong)
    backend.device.programs.clear()


def test_what_they_cost() -> None:
    plain = Epilogue(SGD.expr, SGD.extents)
    shapes = {"x": (9, 8), "weight": (12, 8), "e1": (9, 12), "e2": (9, 12), "e3": (1,)}
    types = {name: TensorType(shape) for name, shape in shapes.items()}
    before, after = (OpSpec.create(Matmul(), types, {}, one).cost for one in (plain, SGD))
    assert after.bytes - before.bytes == 4 * prod((9, 12))
    assert after.flops - before.flops == 4 * prod((9, 12))
    assert SGD.structure != plain.structure and device_rates(None).memory_bound(after) > 0
