"""Reductions over the lanes of rows where subgroups have other sizes than the device's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glnn.gl import Capabilities
from glnn.graph.operator import Operator
from glnn.graph.operators import Normalize, Softmax
from glnn.kernels import kernels_for
from glnn.kernels.architecture import architecture
from tests import oracle
from tests.backends.harness import BACKENDS, TOLERANCE, problem_of, run_kernel

EMULATED = """#define SUBGROUP_SIZE {size}
shared float subgroup_memory[1024];
#define gl_SubgroupID (gl_LocalInvocationIndex / uint(SUBGROUP_SIZE))
#define gl_SubgroupInvocationID (gl_LocalInvocationIndex % uint(SUBGROUP_SIZE))
bool subgroupElect() {{ return gl_SubgroupInvocationID == 0u; }}
uint subgroup_begin(float own) {{
    barrier();
    subgroup_memory[gl_LocalInvocationIndex] = own;
    barrier();
    return gl_SubgroupID * uint(SUBGROUP_SIZE);
}}
float subgroupAdd(float own) {{
    uint first = subgroup_begin(own);
    float sum = 0.0;
    for (uint i = 0u; i < uint(SUBGROUP_SIZE); ++i) sum += subgroup_memory[first + i];
    return sum;
}}
float subgroupMax(float own) {{
    uint first = subgroup_begin(own);
    float greatest = own;
    for (uint i = 0u; i < uint(SUBGROUP_SIZE); ++i)
        greatest = max(greatest, subgroup_memory[first + i]);
    return greatest;
}}
"""
"""The functions of GL_KHR_shader_subgroup_arithmetic by shared memory, for calls by all lanes."""


@pytest.mark.parametrize("op", [Softmax(), Normalize(1)], ids=lambda op: op.name)
@pytest.mark.parametrize("lanes", [128, 512])
@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_all_subgroups_are_joined(
    opened, rng, monkeypatch, size: int, lanes: int, op: Operator
) -> None:
    """Where a workgroup has more subgroups than a subgroup has lanes, too."""
    device = opened("compute").device
    if architecture(device.capabilities) != "llvmpipe":
        pytest.skip("a driver may refuse macros by the names of built-in variables")
    if device.capabilities.max_compute_work_group_invocations < lanes:
        pytest.skip("a workgroup may not have so many invocations")
    header = Capabilities.header

    def emulating(self: Capabilities, stage: str, buffers: bool = False) -> str:
        return header(self, stage, buffers) + EMULATED.format(size=size)

    without = replace(device.capabilities, subgroup_size=0)
    monkeypatch.setattr(device, "capabilities", without)
    monkeypatch.setattr(Capabilities, "header", emulating)
    x = rng((3, 4 * lanes + 5))
    x[:, -1] = 6
    (declared,) = (k for k in kernels_for(op.name, "compute") if k.name == "rows_long")
    kernel = problem_of(op, {"x": x}).adapted(declared).with_parameters(LANES=lanes, KEPT=8)
    got = run_kernel(BACKENDS["compute"](device), op, {"x": x}, kernel)
    if isinstance(op, Softmax):
        expected = oracle.softmax(x, -1)
    else:
        exact = x.astype("float64") - x.astype("float64").mean(-1, keepdims=True)
        expected = exact / ((exact**2).mean(-1, keepdims=True) + op.eps) ** 0.5
    assert oracle.error(got, expected) <= TOLERANCE
