"""Uniforms that a driver reports: those with a value are set, others are left alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from glnn.backends.programs import Programs
from glnn.core.types import TensorType
from glnn.graph.operators import Softmax
from glnn.kernels.library import declared
from glnn.kernels.op_spec import OpSpec


def test_members_of_a_shared_declaration_that_nothing_sets_are_left_alone() -> None:
    """ANGLE: of `uniform int x_row, y_row;` both are active where one is read."""
    spec = OpSpec.create(Softmax(), {"x": TensorType((3, 5))}, {})
    kernel = next(k for k in declared() if k.op == "softmax" and not k.stages)
    known = spec.uniforms(kernel)
    name = next(iter(known))
    program: Any = SimpleNamespace(uniforms=frozenset({name, "x", "kept_by_the_driver"}))
    found = Programs.uniforms(program, kernel, spec, ["x"])
    assert found == {name: known[name], "x": 0}
