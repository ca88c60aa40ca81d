"""Step graphs run without plans of their own: states are fed, and their updates taken, by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glnn.compiler import run
from glnn.core.types import Array
from glnn.training import StepGraph


def ran(step: StepGraph, states: Mapping[str, Array], backend: str, **feeds: Array) -> dict:
    """The states after one run of `step`, for states before and a batch."""
    states = {**step.states, **states}
    given = {**feeds, **{name: states[name] for name in step.states}}
    found = run(step.graph, given, backend)
    return {**states, **{name: found[output] for name, output in step.updates.items()}}


def exactly(step: StepGraph, states: Mapping[str, Array], **feeds: Array) -> dict:
    """The same by the references of the operators, in float64."""
    states = {**step.states, **states}
    given = {**feeds, **{name: states[name] for name in step.states}}
    wide = [
        array.astype(np.float64) if array.dtype == np.float32 else array
        for array in (given[value.name] for value in step.graph.inputs)
    ]
    found = dict(
        zip((v.name for v in step.graph.outputs), step.graph.reference(*wide), strict=True)
    )
    return {**states, **{name: found[output] for name, output in step.updates.items()}}
