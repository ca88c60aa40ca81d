"""Verification of every layer of a plan against NumPy in float64.

All layers are computed in float64, one behind another, and each is compared with what the plan has.
Where that is off by more than is allowed, the layers before may be why: the layer alone is computed
in float64 then, of the operands that the plan has. Where the terms of its results cancel, float32
cannot have them: what counts is the error over the magnitudes of the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from glnn.compiler.plan import Plan
from glnn.errors import GlnnError
from glnn.graph.constant import ConstantExpression, constant, evaluated
from glnn.graph.error import ULP, nudged, relative_error
from glnn.graph.graph import Node, Value
from glnn.types import Array, DType

TOLERANCE = 1e-5
TOLERANCES = {"float32": TOLERANCE, "float16": 2e-3, "int8": 2e-3}
"""The tolerance by the precision of the weights."""
DRAWS = 2  # of moved operands, each of them the other way, too
TINY = 2.0**-40  # of an operand: a move that shows slopes in float64, and no step but at a step
FAR = 8 * ULP  # of an operand: a move beyond what float32 rounds it by
SHARE = 2.0**-8  # of the change by FAR: by TINY a step changes as much, all else 2**-20 of it
WILD = 16  # times what slopes explain, or what other results have
ROUNDED = 2.0**-10  # of the greatest number: what float32 is off by at most, where it is no fault

Compute = Callable[[Mapping[str, Array]], Array]
"""Returns an operator's result of operands by name, computed in the precision that they have."""


@dataclass(frozen=True)
class LayerError:
    """The error of a layer against float64: relative Frobenius norms."""

    name: str
    op: str
    kernel: str
    error: float
    """The error with all layers before it in float64, too."""
    ok: bool
    """Whether `error`, or else `own`, is within the tolerance."""
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
    """Run `plan` on `feeds` and compare what each layer left with the ops' float64 references.

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
    found = _PlanValues(plan, expected)
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
        if result.name in found.results:
            error = relative_error(plan.value(result.name), expected[result])
            own = None if error <= tolerance else _own_error(node, found)
            right = (error if own is None else own) <= tolerance
            names = " + ".join(kernels[node.name])
            layers.append(LayerError(node.name, node.operator.name, names, error, right, own))
    return Verification(plan.backend.name, tolerance, tuple(layers))


class _PlanValues:
    """The values of a graph as a plan's last run left them."""

    def __init__(self, plan: Plan, expected: Mapping[Value, Array]) -> None:
        """expected: the inputs and what no run changes, in float64."""
        self._plan, self._expected = plan, expected
        self.results = frozenset(step.output for step in plan.steps)
        """The names of those that steps made."""
        self._producers = plan.outline.graph.producers

    def __getitem__(self, value: Value) -> Array:
        """Return the value in float64; what no step made, as a view, is computed of what was."""
        if value.name in self.results:
            return _exact(self._plan.value(value.name))
        node = self._producers.get(value)
        if node is None or value in self._plan.outline.graph.fixed:
            return self._expected[value]
        made = node.reference(self.operands(node))
        return _exact(made[node.outputs.index(value)])

    def operands(self, node: Node) -> dict[Value, Array]:
        """Return all that `node` reads."""
        return {value: self[value] for value in node.reads}


def _own_error(node: Node, values: _PlanValues) -> float:
    """Return the error of `node` alone, over the magnitudes of the terms that it adds up."""

    named = {str(i): value for i, value in enumerate(node.reads)}  # constants share names

    def compute(operands: Mapping[str, Array]) -> Array:
        return _exact(node.reference({named[name]: operands[name] for name in named})[0])

    operands = {name: values[value] for name, value in named.items()}
    return term_error(compute, operands, values[node.outputs[0]])


def _narrow(array: Array, value: Value) -> Array:
    """Return `array`, int64 as int32 where the plan has `value` so: its run saw that it fits."""
    both = DType.of(array), value.type.dtype
    return array.astype(np.int32) if both == (DType.int64, DType.int32) else array


def _exact(array: Array) -> Array:
    """Convert floats to float64; numbers rounded to float16 stay rounded."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def term_error(compute: Compute, operands: Mapping[str, Array], got: Array) -> float:
    """Return |got - expected| over |expected|, or over the norm of the terms where that is more.

    operands, got: in float64. A term's magnitude is the slope by the operands, or what rounding in
    float32 adds, in ulps. A change that does not shrink with the move of the operands is a step
    (of Floor, Mod, a comparison) and no term. A result at a step must be right, unless NumPy in
    float32 has another one near some step; one there, or some ulps away from a step or a kink, may
    be anything between those that were seen in float64.
    """
    with np.errstate(all="ignore"):
        expected = compute(operands)
        error = relative_error(got, expected)
        if expected.dtype.kind != "f" or not np.isfinite(error):
            return error
        rounding = np.abs(_finite(compute(_single(operands)) - expected))
        least, most, tiny, far = (np.zeros(expected.shape) for _ in range(4))
        for draw, side in product(range(DRAWS), (1, -1)):
            change, more = (
                _finite(compute(_perturb(operands, draw, side * scale)) - expected)
                for scale in (TINY, FAR)
            )
            least = np.minimum(least, np.minimum(change, more))
            most = np.maximum(most, np.maximum(change, more))
            tiny, far = np.maximum(tiny, np.abs(change)), np.maximum(far, np.abs(more))
        sizes, slopes = np.abs(_finite(expected)), np.minimum(tiny / TINY, far / FAR)
        at_step = tiny > SHARE * np.maximum(np.maximum(far, rounding), ULP * sizes)
        near_step = ~at_step & (far > WILD * FAR * np.maximum(slopes, sizes))
        smooth = ~(at_step | near_step)
        unsure = near_step
        if (rounding > SHARE * far)[~smooth].any():  # the places of steps are rounded themselves
            unsure = ~smooth
        away = _finite(got - expected)
        away -= np.where(unsure, np.clip(away, least, most), 0.0)
        greatest = max(float(np.abs(_finite(one)).max(initial=0.0)) for one in operands.values())
        greatest = max(greatest, float(sizes.max(initial=0.0)))
        noise = np.where(rounding <= ROUNDED * greatest, rounding / ULP, 0.0)
        terms = np.where(smooth, np.maximum(slopes, noise), 0.0)
        usual = float(np.median(terms[smooth])) if smooth.any() else 0.0
        usual = max(usual, float(sizes.max(initial=0.0)))
        terms[terms > WILD * np.maximum(slopes, usual)] = 0.0  # a step that only float32 crosses
        norm = max(float(np.linalg.norm(sizes)), float(np.linalg.norm(terms)))
        return float(np.linalg.norm(away)) / (norm or 1.0)


def _perturb(operands: Mapping[str, Array], draw: int, scale: float) -> dict[str, Array]:
    """Return `operands`, each float off by `scale` of it, this way or that; equal ones alike."""
    found = dict(operands)
    for name, array in operands.items():
        if array.dtype.kind == "f":
            found[name] = array * (1 + scale * np.sign((nudged(array, draw, name) - array) * array))
    return found


def _single(operands: Mapping[str, Array]) -> dict[str, Array]:
    """Return `operands`, those of floats in float32."""
    return {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in operands.items()}


def _finite(array: Array) -> Array:
    """Return `array` with zeros in the place of NaN and infinities."""
    return np.where(np.isfinite(array), array, 0.0)
