"""Verification of every layer of a plan against NumPy in float64.

NumPy computes all layers in float64, one after another, and each result is compared with the
plan's. Where that is off by more than the tolerance, the error may come from earlier layers: then
the layer alone is computed in float64, from the plan's operands. As the terms of a result may
cancel, this error is relative to the magnitudes of the terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from glnn.compiler.plan import Plan
from glnn.core.types import Array, DType
from glnn.errors import GlnnError
from glnn.graph.constant import ConstantExpression, constant, evaluated
from glnn.graph.graph import Node, Value
from glnn.validation.comparison import relative_error, term_error

TOLERANCE = 1e-5
TOLERANCES = {"float32": TOLERANCE, "float16": 2e-3, "int8": 2e-3}
"""The tolerance by the precision of the weights."""


@dataclass(frozen=True)
class LayerError:
    """The error of a layer against float64: relative Frobenius norms."""

    name: str
    op: str
    kernel: str
    error: float
    """The error with all layers before it in float64, too."""
    ok: bool
    """True where `error`, or else `own`, is within the tolerance."""
    own: float | None = None
    """The error of this layer alone, relative to the terms of its results; None where `error`
    is enough."""


@dataclass(frozen=True)
class Verification:
    """The errors of a plan's layers, in the order in which they run."""

    backend: str
    tolerance: float
    layers: tuple[LayerError, ...]

    @property
    def worst(self) -> float:
        """The greatest error; inf where NaN or infinities are in other places."""
        return max((layer.error for layer in self.layers), default=0.0)

    @property
    def first_divergence(self) -> str | None:
        """The first layer whose error exceeds the tolerance."""
        return next((layer.name for layer in self.layers if not layer.ok), None)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain dicts, lists and numbers."""
        return {
            **asdict(self),
            "worst": self.worst,
            "ok": self.first_divergence is None,
            "first_divergence": self.first_divergence,
        }


def verify(plan: Plan, feeds: Mapping[str, Array], tolerance: float = TOLERANCE) -> Verification:
    """Run `plan` on `feeds` and compare each layer's result with the operators in float64.

    The plan must keep its tensors (`keep=True`). Raises GlnnError for a tolerance that is no
    number of at least 0.
    """
    if not tolerance >= 0:
        raise GlnnError(f"tolerance must be a number of at least 0, got {tolerance}")
    plan.run(feeds)
    graph = plan.outline.graph
    known: dict[Value, ConstantExpression] = {}
    expected = {v: _exact(_narrow(feeds[v.name], v)) for v in graph.inputs}
    kernels: dict[str, list[str]] = {}
    for step in plan.steps:
        kernel = step.via or step.kernel
        if step.op.name != "reorder" and kernel not in kernels.setdefault(step.layer, []):
            kernels[step.layer].append(kernel)
    plan_values = _PlanValues(plan, expected)
    layers = []
    for node in graph.nodes:
        if node.outputs[0] in graph.fixed:
            continue
        for value in node.reads:
            if value in graph.fixed:
                expected[value] = _exact(evaluated(constant(graph, value, known)))
        made = (_exact(array) for array in node.reference(expected))
        expected.update(zip(node.outputs, made, strict=True))
        result = node.outputs[0]
        if result.name in plan_values.results:
            error = relative_error(plan.value(result.name), expected[result])
            own_error = None if error <= tolerance else _own_error(node, plan_values)
            right = (error if own_error is None else own_error) <= tolerance
            names = " + ".join(kernels[node.name])
            layers.append(LayerError(node.name, node.operator.name, names, error, right, own_error))
    return Verification(plan.backend.name, tolerance, tuple(layers))


class _PlanValues:
    """The values of a graph as a plan's last run left them."""

    def __init__(self, plan: Plan, expected: Mapping[Value, Array]) -> None:
        """expected: the inputs and the values that no run changes, in float64."""
        self._plan, self._expected = plan, expected
        self.results = frozenset(step.output for step in plan.steps)
        """The names of the values that steps computed."""
        self._producers = plan.outline.graph.producers

    def __getitem__(self, value: Value) -> Array:
        """Return the value in float64; one without a step, as a view, is computed from others."""
        if value.name in self.results:
            return _exact(self._plan.value(value.name))
        node = self._producers.get(value)
        if node is None or value in self._plan.outline.graph.fixed:
            return self._expected[value]
        results = node.reference(self.operands(node))
        return _exact(results[node.outputs.index(value)])

    def operands(self, node: Node) -> dict[Value, Array]:
        """Return the values that `node` reads."""
        return {value: self[value] for value in node.reads}


def _own_error(node: Node, values: _PlanValues) -> float:
    """Return the error of `node` alone, relative to the magnitudes of the terms that it sums."""
    named = {str(i): value for i, value in enumerate(node.reads)}  # constants share names

    def compute(operands: Mapping[str, Array]) -> Array:
        return _exact(node.reference({named[name]: operands[name] for name in named})[0])

    operands = {name: values[value] for name, value in named.items()}
    return term_error(compute, operands, values[node.outputs[0]])


def _narrow(array: Array, value: Value) -> Array:
    """Return `array`, int64 as int32 where the plan narrows `value`, whose numbers a run checks."""
    types = DType.from_array(array), value.type.dtype
    return array.astype(np.int32) if types == (DType.int64, DType.int32) else array


def _exact(array: Array) -> Array:
    """Convert floats to float64; numbers rounded to float16 stay rounded."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array
