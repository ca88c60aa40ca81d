"""Every layer of a plan held against NumPy in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glnn.compile.plan import Plan
from glnn.errors import GlnnError
from glnn.graph.error import relative_error

Array = NDArray[Any]
TOLERANCE = 1e-5


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
    expected = {name: array.astype(np.float64) for name, array in feeds.items()}
    kernels: dict[str, list[str]] = {}
    for step in plan.steps:
        kernel = step.via or step.kernel
        if step.op.name != "repack" and kernel not in kernels.setdefault(step.layer, []):
            kernels[step.layer].append(kernel)
    layers = []
    for node in plan.nodes:
        expected[node.output] = node.compute(expected)
        if not node.op.view:
            error = relative_error(plan.value(node.output), expected[node.output])
            layers.append(
                LayerError(
                    node.name,
                    node.op.name,
                    " + ".join(kernels[node.name]),
                    error,
                    error <= tolerance,
                )
            )
    return Verification(plan.backend.name, tolerance, tuple(layers))
