"""Fused operators are counted with the workgroups of the kernels that would compute them."""

from __future__ import annotations

import pytest

from glnn.compiler.fusion_cost_model import (
    Case,
    is_batch_normalize_profitable,
    is_normed_product_profitable,
)
from glnn.core.types import TensorType
from glnn.graph.operators import BatchNormalize, NormedMatmul
from glnn.kernels import kernels_for
from glnn.kernels.cost_model import DeviceRates
from glnn.kernels.kernel import Kernel
from glnn.kernels.op_spec import OpSpec

IMAGES = TensorType((2, 64, 8, 8))
NBYTES = 4 * 2 * 64 * 8 * 8


def kernel_called(op: str, name: str) -> Kernel:
    (kernel,) = (one for one in kernels_for(op, "compute") if one.name == name)
    return kernel


@pytest.mark.parametrize(("fours", "pays"), [(1, True), (2, True), (4, False)])
def test_workgroups_of_a_batch_normalisation(fours, pays) -> None:
    """8 workgroups reach the whole bandwidth. By these it reads the images once more than two
    launches do, which a launch of twice the time outweighs; by 4, of half the bandwidth, the three
    passes take as long as six.
    """
    of = DeviceRates(
        products=1e12,
        others=1e12,
        bytes=1.0,
        launch=2 * NBYTES,
        rows=1,
        columns=1,
        workgroup_share=1 / 8,
    )
    kernel = kernel_called("batch_normalize", "nhwc").with_parameters(RESULTS=fours)

    def choose_kernel(spec: OpSpec, name: str | None) -> Kernel:
        assert name is None and spec.layouts["x"] == "nhwC4c"
        return kernel

    planar = kernel_called("batch_normalize", "planar")  # a workgroup a channel
    spec = OpSpec.create(BatchNormalize(), {"x": IMAGES}, {})
    assert is_batch_normalize_profitable(Case(spec, planar, of, choose_kernel)) == pays


@pytest.mark.parametrize(
    ("op", "name", "other", "pays"),
    [
        ("matmul", "gemm_tiled", "gemm_tiled", True),
        ("matmul", "gemm_tiled", "gemm_unaligned", False),
        ("normed_matmul", "gemv_centred", "gemm_unaligned", True),
    ],
)
def test_products_keep_the_kernel_that_is_faster(op, name, other, pays) -> None:
    """A kernel of products normalises rows only where it would multiply them otherwise, too; one
    that is for normalised rows alone is no worse for that.
    """
    of = DeviceRates(products=1e12, others=1e12, bytes=1e12, launch=1.0, rows=1, columns=1)
    operands = {"x": TensorType((64, 128)), "weight": TensorType((256, 128))}
    spec = OpSpec.create(NormedMatmul(1e-5, centred=True), operands, {})
    (kernel,) = (one for one in kernels_for("normed_matmul", "compute") if one.name == name)
    assert any(map(kernel.shares_declaration, kernels_for("matmul", "compute"))) == (op == "matmul")
    case = Case(spec, kernel, of, lambda *_: kernel_called("matmul", other))
    assert is_normed_product_profitable(case) == pays
