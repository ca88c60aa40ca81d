"""Whether passes are to make one operator of several."""

from __future__ import annotations

from collections.abc import Mapping

from glnn.backends import Backend
from glnn.graph.operator import Operands, Operator
from glnn.graph.operators import Conv2d, SeparableConv2d
from glnn.kernels.architecture import architecture
from glnn.kernels.kernel import Kernel
from glnn.kernels.predict import pace, separable_pays
from glnn.kernels.problem import Problem
from glnn.kernels.select import names_of


def pays(backend: Backend, kernels: Mapping[str, str], operator: Operator, types: Operands) -> bool:
    """Whether `operator`, of operands of these types by name, is to be made of several: a kernel
    is asked for, or one is meant for it and what it computes anew costs less than a launch, and
    none is asked for of those that it takes the place of.

    kernels: those asked for, by the name of the op.
    """
    problem, asked = Problem.of(operator, types, {}), names_of(kernels.get(operator.name, ""))
    if asked:
        return any(backend.suits(problem, kernel) for kernel in asked)
    if not backend.suits(problem):
        return False
    if not isinstance(operator, SeparableConv2d) or backend.device is None:
        return True
    if Conv2d.name in kernels:
        return False
    choice, of = backend.choose(problem), pace(architecture(backend.device.capabilities))
    return isinstance(choice, Kernel) and separable_pays(problem, choice, of)
