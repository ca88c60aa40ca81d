"""The plans of a graph that serve a range of sizes each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from glnn.compile.plan import Plan
from glnn.compile.regime import OpenSizes
from glnn.errors import DeviceError, LimitError, ShapeError
from glnn.graph.graph import Graph
from glnn.process import COLLECTOR
from glnn.types import Array, TensorType

LOG = logging.getLogger(__name__)
MOST_REGIMES = 16
MOST_PINNED = (
    2  # plans that failed with SymInts, or hold for little but one size: then no more are made
)


class Regimes:
    """A list of plans that serve a range of sizes each, the one used last first.

    Not for several threads at once. batches: whether there are any where the batch alone is open.
    """

    def __init__(self, *, batches: bool = False) -> None:
        self.plans: list[Plan] = []
        self._batches, self._pinned = batches, 0

    def find(self, feeds: Mapping[str, Array]) -> Plan | None:
        """Return the plan whose guards admit inputs such as `feeds`, if there is one."""
        for i, plan in enumerate(self.plans):
            if plan.executable.admits(feeds):
                if i:
                    self.plans.insert(0, self.plans.pop(i))
                return plan
        return None

    @COLLECTOR.relaxed()
    def add(
        self,
        graph: Graph,
        feeds: Mapping[str, Array],
        told: Mapping[str, Array],
        single: Callable[[Graph, Mapping[str, TensorType], Mapping[str, Array]], Graph],
        **options: Any,
    ) -> Plan | None:
        """Return a new plan for a range of sizes around those of `feeds`.

        None where the graph has no open sizes, or cannot be planned with SymInts. told: the inputs
        whose numbers decide sizes. single: gives the graph that is planned, for types and numbers
        with SymInts (`cut.single`). options: those of Plan.
        """
        exhausted = self._pinned >= MOST_PINNED
        shapes = {name: array.shape for name, array in feeds.items()}
        sizes = None if exhausted else OpenSizes.of(graph, shapes, told, batches=self._batches)
        if sizes is None:
            return None
        try:
            whole = single(graph, sizes.types(graph), sizes.told)
            plan = Plan(whole, shapes=sizes.shapes, domain=sizes.domain, **options)
        except Exception as error:  # what a SymInt is no good for numbers are, or raise it again
            LOG.debug("%s: no regime: %s", graph.name, error, exc_info=True)
            # Sizes that do not fit, or are too large, are so without SymInts, too.
            passing = (ShapeError, LimitError, DeviceError, MemoryError)
            self._pinned += not isinstance(error, passing)
            return None
        trace = sizes.trace
        LOG.debug("%s: a regime of %s, %d guards", graph.name, trace.bounds, len(trace.guards))
        self._pinned += trace.pinned
        self.plans.insert(0, plan)
        del self.plans[MOST_REGIMES:]
        return plan
