"""Graphs computed node by node, each by its operator's reference in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glnn.core.types import Array
from glnn.graph.constant import constant, evaluated
from glnn.graph.graph import Graph


def results(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by name; weights are rounded to float32 once, as a device gets them."""
    found = {value: _wide(feeds[value.name]) for value in graph.inputs}
    for node in graph.nodes:
        if node.outputs[0] in graph.fixed:
            continue
        for value in node.reads:
            if value in graph.fixed:
                found[value] = _wide(evaluated(constant(graph, value, {})))
        found.update(zip(node.outputs, node.reference(found), strict=True))
    return {value.name: found[value] for value in graph.outputs}


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype == np.float32 else array
