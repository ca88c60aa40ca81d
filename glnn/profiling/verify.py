"""Every layer of a plan held against NumPy in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.compile.plan import Plan
from glnn.errors import GlnnError
from glnn.graph.constant import Constant, constant, evaluated
from glnn.graph.error import relative_error
from glnn.graph.graph import Value

Array = NDArray[Any]
TOLERANCE = 1e-5
TOLERANCES = {"float32": TOLERANCE, "float16": 2e-3, "int8": 2e-3}
"""What is allowed by the precision of the weights."""


@dataclass(frozen=True)
class LayerError:
    """How far a layer's result is from float64: the relative Frobenius error."""

    name: str
    op: str
    kernel: str
    error: float
    ok: bool


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
        """The same as plain dicts, lists and numbers."""
        return {
            **asdict(self),
            "worst": self.worst,
            "ok": self.first_divergence is None,
            "first_divergence": self.first_divergence,
        }


def verify(plan: Plan, feeds: Mapping[str, Array], tolerance: float = TOLERANCE) -> Verification:
    """Run `plan` on `feeds` and compare what each layer left with the ops' float64 references.

    The plan must keep its tensors (`keep=True`). Raises GlnnError for a tolerance that is no
    number of at least 0.
    """
    if not tolerance >= 0:
        raise GlnnError(f"tolerance must be a number of at least 0, got {tolerance}")
    plan.run(feeds)
    graph = plan.outline.graph
    known: dict[Value, Constant] = {}
    expected = {v: _exact(feeds[v.name]) for v in graph.inputs}
    kernels: dict[str, list[str]] = {}
    for step in plan.steps:
        kernel = step.via or step.kernel
        if step.op.name != "reorder" and kernel not in kernels.setdefault(step.layer, []):
            kernels[step.layer].append(kernel)
    results = {step.output for step in plan.steps}
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
        if result.name in results:
            error = relative_error(plan.value(result.name), expected[result])
            names, right = " + ".join(kernels[node.name]), error <= tolerance
            layers.append(LayerError(node.name, node.operator.name, names, error, right))
    return Verification(plan.backend.name, tolerance, tuple(layers))


def _exact(array: Array) -> Array:
    """`array`, of floats as float64; what was rounded to float16 is computed with so."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array
