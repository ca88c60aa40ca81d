"""Products of operands that runs change, which are taken as they lie: in rows or in columns."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from glnn.backends.gl import GlBackend
from glnn.compiler import Plan
from glnn.core.types import TensorType
from glnn.errors import LimitError
from glnn.graph.builder import Builder
from glnn.graph.operators import Matmul, Transpose
from glnn.graph.operators.matmul import MatmulParts
from glnn.kernels import library
from glnn.kernels.capability_check import why_not_device
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec
from tests import oracle
from tests.backends.epilogues import finish
from tests.backends.harness import TOLERANCE, run_kernel, taken

SIZES = [(1, 7, 3), (3, 5, 1), (7, 31, 64), (33, 129, 7), (129, 127, 100)]
STACKS = [(1, 3, 5, 4), (3, 5, 7, 8), (2, 33, 31, 12)]
MLPS = [(64, 784, 512), (100, 512, 10), (512, 784, 1024), (64, 1024, 1024), (100, 1024, 10)]


def several() -> list[Kernel]:
    """The kernels that take operands in several layouts, one of each shader."""
    found = {}
    for kernel in library():
        lists = kernel.layouts.get("weight", ()), kernel.layouts.get("x", ())
        if kernel.op in ("matmul", "matmul_parts") and not kernel.stages and len(lists[0]) > 1:
            key = (
                kernel.path,
                tuple(kernel.bindings),
                kernel.launch.captures.evaluate(kernel.defaults),
            )
            found.setdefault(key, kernel)
    return list(found.values())


def lying(kernel: Kernel) -> list[dict[str, str]]:
    """Each way in which its operands may lie, but for that in which others are packed."""
    pairs = list(product(kernel.layouts["x"], kernel.layouts["weight"]))
    return [{"x": x, "weight": weight} for x, weight in pairs[1:]]


CASES = [
    pytest.param(kernel, layouts, id=f"{kernel.op}-{kernel.name}-{'-'.join(layouts.values())}")
    for kernel in several()
    for layouts in lying(kernel)
]


@pytest.mark.parametrize("opened", ["as it is", "es31-minimum"], indirect=True)
@pytest.mark.parametrize(("kernel", "layouts"), CASES)
def test_any_layout(opened, rng, kernel, layouts) -> None:
    """Poison lies behind rows and columns, also behind those of the weights."""
    backend = opened(kernel.backend)
    if reason := why_not_device(kernel, backend.device.capabilities):
        pytest.skip(reason)
    parts = kernel.op == "matmul_parts"
    op = MatmulParts(3) if parts else Matmul()
    epilogue = None if parts else finish(alpha=-1.5, bias=True, beta=0.25, full=True)
    for m, n, k in SIZES:
        operands = {"x": rng((m, k)), "weight": rng((n, k))}
        if not parts:
            operands |= {"e1": rng((n,)), "e2": rng((m, n))}
        got = run_kernel(backend, op, operands, kernel, epilogue, layouts)
        if parts:
            got = got.astype(np.float64).reshape(3, m, n).sum(0)
            expected = oracle.matmul(operands["x"], operands["weight"])
        else:
            expected = oracle.matmul(*operands.values(), alpha=-1.5, beta=0.25)
        assert oracle.error(got, expected) <= TOLERANCE, (m, n, k)


@pytest.mark.parametrize("opened", ["as it is", "es31-minimum"], indirect=True)
@pytest.mark.parametrize("weight", ["R", "C"])
@pytest.mark.parametrize("kernel", [k for k in several() if k.op == "matmul"], ids=lambda k: k.name)
def test_stacks_of_any_layout(opened, rng, kernel, weight) -> None:
    backend = opened(kernel.backend)
    for batch, m, n, k in STACKS:
        x, stack = rng((batch * m, k)), rng((batch, n, k))
        spec = OpSpec.create(Matmul(), {"x": x.shape, "weight": stack.shape}, {"weight": weight})
        if taken(kernel, spec) is None:
            pytest.skip("no stack of them")
        if backend.why_not(spec, kernel.name):
            pytest.skip(str(backend.why_not(spec, kernel.name)))
        got = run_kernel(
            backend, Matmul(), {"x": x, "weight": stack}, kernel, layouts={"weight": weight}
        )
        for i in range(batch):
            rows = slice(i * m, (i + 1) * m)
            assert oracle.error(got[rows], oracle.matmul(x[rows], stack[i])) <= TOLERANCE


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize(
    "kernel",
    [k for k in several() if k.path.name in ("gemm_blocked.comp", "gemm_split_k.comp")],
    ids=lambda k: k.name,
)
def test_rows_of_every_invocation(opened, rng, kernel) -> None:
    """x in columns is read in fours, or one by one where an invocation's rows are no fours."""
    backend, ran = opened(kernel.backend), 0
    layouts = {"x": "C", "weight": "C"}
    for value in kernel.tune["TM"]:
        one = kernel.with_parameters(TM=value)
        if why_not_device(one, backend.device.capabilities) is None:
            x, weight = rng((37, 9)), rng((13, 9))
            operands = {"x": x, "weight": weight}
            try:
                got = run_kernel(backend, Matmul(), operands, one, layouts=layouts)
            except LimitError:  # what the driver alone knows
                continue
            assert oracle.error(got, oracle.matmul(x, weight)) <= TOLERANCE, value
            ran += 1
    assert ran


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize(("kernel", "layouts"), CASES)
def test_not_a_number_goes_where_numpy_sends_it(opened, rng, kernel, layouts) -> None:
    backend = opened(kernel.backend)
    if kernel.op != "matmul" or why_not_device(kernel, backend.device.capabilities):
        return
    x, weight = rng((5, 6)), rng((7, 6))
    x[2, 3], weight[4, 5] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    got = run_kernel(backend, Matmul(), {"x": x, "weight": weight}, kernel, layouts=layouts)
    assert oracle.error(got, expected) <= TOLERANCE


def products(backend: GlBackend, batch: int, inner: int, outer: int) -> tuple[Plan, dict]:
    """A plan of the three products of a layer's training, and the shapes of its inputs."""
    shapes = {"x": (batch, inner), "w": (outer, inner), "dy": (batch, outer)}
    builder = Builder()
    x, w, dy = (builder.input(name, TensorType(shape)) for name, shape in shapes.items())

    def turned(value):
        return builder.add(Transpose((1, 0)), value, name=f"{value.name} turned")[0]

    outputs = [
        builder.add(Matmul(), x, w, name="y")[0],
        builder.add(Matmul(), dy, turned(w), name="dx")[0],
        builder.add(Matmul(), turned(dy), turned(x), name="dw")[0],
    ]
    return Plan(builder.graph(outputs), backend, shapes), shapes


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
@pytest.mark.parametrize(("batch", "inner", "outer"), MLPS)
def test_a_layers_training_reorders_nothing(opened, batch, inner, outer) -> None:
    plan, _ = products(opened("compute"), batch, inner, outer)
    assert [step.op.name for step in plan.steps] == ["matmul"] * 3


@pytest.mark.parametrize("opened", ["as it is", "es31-minimum"], indirect=True)
@pytest.mark.parametrize("name", ["compute", "feedback"])
@pytest.mark.parametrize(("batch", "inner", "outer"), [(8, 12, 20), (5, 7, 3), (100, 64, 10)])
def test_a_layers_training_is_right(opened, rng, name, batch, inner, outer) -> None:
    plan, shapes = products(opened(name), batch, inner, outer)
    feeds = {key: rng(shape) for key, shape in shapes.items()}
    got = plan.run(feeds)
    x, w, dy = (array.astype(np.float64) for array in feeds.values())
    for found, expected in zip(got.values(), (x @ w.T, dy @ w, dy.T @ x), strict=True):
        assert oracle.error(found, expected) <= TOLERANCE


@pytest.mark.parametrize("opened", ["as it is"], indirect=True)
def test_what_would_reorder_changing_weights_is_not_preferred(opened) -> None:
    """Weights in columns are not given to the kernel of few rows, which wants them in rows."""
    backend, shapes = opened("compute"), {"x": (2, 784), "weight": (512, 784)}
    rows = backend.choose(OpSpec.create(Matmul(), shapes, {"x": "R", "weight": "R"}))
    assert rows.name in ("gemv", "gemv_texture_buffer")  # as the device suits
    columns = backend.choose(OpSpec.create(Matmul(), shapes, {"x": "R", "weight": "C"}))
    assert "C" in columns.layouts["weight"]
    assert backend.choose(OpSpec.create(Matmul(), shapes, {"x": "R"})).name == rows.name
